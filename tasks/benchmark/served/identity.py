"""Whether a server has the target: its tokenizer splits a text as the target's does."""

from __future__ import annotations

from schemas.errors import EngineError
from tasks.benchmark.served.client import Client
from tasks.formats.codec import Codec

_TEXT = "Ça alors! 3,141 rivers ran INTO the sea;\n\tdef f(x): return x**2  # 東京 — naïve"


def require_tokenizer(client: Client, codec: Codec) -> None:
    """Refuse a server whose tokenizer is another one than the target's.

    Raises:
        EngineError: gives the first ids that differ.
    """
    path, body = client.dialect.tokenise(client.model, _TEXT)
    said = client.post(path, body)
    try:
        found = [int(one) for one in said["tokens"]]
    except (KeyError, TypeError, ValueError):
        raise EngineError(f"the server at {client.url} answers {path} with {str(said)[:200]}, no ids") from None
    own = codec.encode([_TEXT])[0]
    if list(found) != list(own):
        place = next((i for i, (a, b) in enumerate(zip(found, own, strict=False)) if a != b), min(len(found), len(own)))
        raise EngineError(
            f"the server at {client.url} splits a text otherwise than the target: at id {place} "
            f"{found[place : place + 4]} instead of {list(own[place : place + 4])}; it serves a different model"
        )
