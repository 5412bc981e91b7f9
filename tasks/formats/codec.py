"""A tokenizer as the token formats need it: text to ids and back, without a marker ever being read by accident.

Which library reads which folder is decided here; what each does: tokenizer_json.py, tiktoken_model.py.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from schemas.errors import TokenFormatError
from schemas.ragged import Ids

TIKTOKEN_FILE = "tiktoken.model"
TOKENIZER_FILE = "tokenizer.json"

_KEPT = 16  # tokenizers in memory at a time; the largest take 200 MB
_loading = threading.Lock()


class Codec(Protocol):
    """The served model's own tokenizer. Safe to use from several threads."""

    vocab_size: int  # every id is below it, markers and reserved ids included
    markers: Mapping[str, int]  # text of every added token (control tokens, <think>, tool markers) and its id
    special_ids: frozenset[int]  # ids that a server strips with skip_special_tokens
    sha256: str  # of the file that holds the vocabulary
    lossless: bool  # every byte has an id, so that the ids of `encode` decode to its text

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of text that the model wrote: markers are plain text, nothing is normalised, added or stripped.

        A byte that the vocabulary lacks (SmolLM2's lacks 21 of them) has no id; the text that comes back shows it.

        Raises:
            UnicodeEncodeError: a text has half of a surrogate pair.
        """
        ...

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """The same as `encode`, for many long texts: as arrays that must not be written to."""
        ...

    def encode_prompt(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of rendered prompts as a server encodes them: markers become their ids, normalisation as configured.

        Raises:
            UnicodeEncodeError: a text has half of a surrogate pair.
        """
        ...

    def decode(self, rows: Sequence[Sequence[int] | Ids]) -> list[str]:
        """Text of ids, markers written out, no space added or removed; U+FFFD where bytes are not UTF-8."""
        ...


def load_codec(folder: Path) -> Codec:
    """The tokenizer of a model's folder, one per process: `tiktoken.model` if there is one, else `tokenizer.json`.

    Raises:
        TokenFormatError: the folder has neither file, or its tokenizer cannot give exact ids.
    """
    path = next((path for name in (TIKTOKEN_FILE, TOKENIZER_FILE) if (path := folder / name).is_file()), None)
    if path is None:
        raise TokenFormatError(
            f"{folder} has neither {TIKTOKEN_FILE} nor {TOKENIZER_FILE}; give the folder of the served model's "
            "tokenizer"
        )
    stat = path.stat()
    with _loading:
        return _load(path.resolve(), stat.st_mtime_ns, stat.st_size)


def check_text(texts: Sequence[str]) -> None:
    """Refuse text that has no bytes: libraries replace half of a surrogate pair by U+FFFD without a word.

    Raises:
        UnicodeEncodeError: names the character.
    """
    for text in texts:
        if not text.isascii():
            text.encode()


@lru_cache(maxsize=_KEPT)
def _load(path: Path, _modified: int, _size: int) -> Codec:
    if path.name == TIKTOKEN_FILE:
        from tasks.formats.tiktoken_model import TiktokenModel

        return TiktokenModel(path)
    from tasks.formats.tokenizer_json import TokenizerJson

    return TokenizerJson(path)
