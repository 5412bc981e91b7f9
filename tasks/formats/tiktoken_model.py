"""Kimi's `tiktoken.model` as a codec, through the library `tiktoken`; names of control ids from tokenizer_config.json.

The library's own handling of text that has no bytes, and Kimi's of very long texts, are made explicit here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tiktoken

from schemas.errors import TokenFormatError
from schemas.ragged import Ids
from tasks.formats.codec import check_text
from tasks.formats.marker_text import any_of
from tasks.formats.pieces import Pieces

CONFIG_FILE = "tokenizer_config.json"
RESERVED_IDS = 256  # control ids after the ranks; those without a name are reserved

# Where text is cut before bytes are merged: runs of Han letters; words with a contraction, capitals first or not; up
# to three digits; signs; line ends; spaces.
_LETTERS = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_SMALL = rf"[\p{{Ll}}{_LETTERS}]"
_CAPITAL = rf"[\p{{Lu}}\p{{Lt}}{_LETTERS}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        f"{_BEFORE}{_CAPITAL}*{_SMALL}+{_CONTRACTION}",
        f"{_BEFORE}{_CAPITAL}+{_SMALL}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

_LONGEST_TEXT = 400_000  # characters that Kimi's tokenizer encodes at once
_LONGEST_RUN = 25_000  # characters without, or of nothing but, white space that it encodes at once
_RUNS = re.compile(rf"\S{{1,{_LONGEST_RUN}}}|\s{{1,{_LONGEST_RUN}}}")
_LONG_SPACE = re.compile(rf"\s{{{_LONGEST_RUN + 1}}}")
_NO_MARKER = "<|\0|>"  # the library looks for special tokens, of which none is allowed: one that is found fast
_THREADS = os.cpu_count() or 1
_HANDFULS = 8  # pieces of work for each thread, so that none waits long for the last


class TiktokenModel:
    """The ranks of one file under Kimi's pattern."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.sha256 = hashlib.sha256(content).hexdigest()
        ranks = _ranks(path, content)
        names, special = _control_tokens(path.with_name(CONFIG_FILE), len(ranks))
        self.vocab_size = len(ranks) + RESERVED_IDS
        self.markers: Mapping[str, int] = names
        self.special_ids = special
        self._marker = any_of(names)
        self._encoding = tiktoken.Encoding(
            path.name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={_NO_MARKER: len(ranks)}
        )
        self.lossless = all(bytes([byte]) in ranks for byte in range(256))
        spelt = {number: piece for piece, number in ranks.items()}
        spelt |= {number: name.encode() for name, number in names.items()}
        self._pieces = Pieces([spelt[number] for number in range(self.vocab_size)])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of text that the model wrote; see `Codec`."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of text that the model wrote; see `Codec`."""
        check_text(texts)
        return self._encode(texts)

    def encode_prompt(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of rendered prompts, cut where Kimi's own tokenizer cuts them; see `Codec`."""
        check_text(texts)
        rows = [[part for piece in kimi_pieces(text) for part in self._parts(piece)] for text in texts]
        plain = [part for row in rows for part in row if isinstance(part, str)]
        encoded = (ids.tolist() for ids in self._encode(plain))
        return [
            [number for part in row for number in (next(encoded) if isinstance(part, str) else (part,))] for row in rows
        ]

    def decode(self, rows: Sequence[Sequence[int] | Ids]) -> list[str]:
        """Text of ids; see `Codec`."""
        return self._pieces.texts(rows)

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        """The library's own batch hands texts to its threads one by one and makes lists; this takes a third less."""
        handful = max(len(texts) // (_THREADS * _HANDFULS), 1)
        starts = range(0, len(texts), handful)
        to_array = self._encoding.encode_to_numpy

        def encode(start: int) -> list[Ids]:
            return [to_array(text, disallowed_special=()).view(np.int32) for text in texts[start : start + handful]]

        with ThreadPoolExecutor(_THREADS) as pool:
            return [ids for handful_rows in pool.map(encode, starts) for ids in handful_rows]

    def _parts(self, text: str) -> Iterator[str | int]:
        """Text between markers, and the markers' ids; the library does the same at half the speed."""
        begin = 0
        for marker in self._marker.finditer(text):
            if marker.start() > begin:
                yield text[begin : marker.start()]
            yield self.markers[marker[0]]
            begin = marker.end()
        if begin < len(text):
            yield text[begin:]


def kimi_pieces(text: str) -> Iterator[str]:
    """The pieces that Kimi's tokenizer encodes apart: usually the whole text."""
    for start in range(0, len(text), _LONGEST_TEXT):
        part = text[start : start + _LONGEST_TEXT]
        if len(part) <= _LONGEST_RUN or not _has_long_run(part):
            yield part
            continue
        begin = 0
        for run in _RUNS.finditer(part):
            end = run.end()
            cut = end - run.start() == _LONGEST_RUN and end < len(part)
            if cut and part[end].isspace() == part[end - 1].isspace():
                yield part[begin:end]
                begin = end
        yield part[begin:]


def _has_long_run(text: str) -> bool:
    return max(map(len, text.split()), default=0) > _LONGEST_RUN or _LONG_SPACE.search(text) is not None


def _ranks(path: Path, content: bytes) -> dict[bytes, int]:
    try:
        lines = (line.split() for line in content.splitlines())
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    except ValueError as error:
        raise TokenFormatError(f"{path} is no list of base64 tokens and ranks ({error}); fetch it anew") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or not ranks:
        raise TokenFormatError(f"{path} has {len(ranks)} ranks with gaps or repetitions; fetch it anew")
    return ranks


def _control_tokens(path: Path, first: int) -> tuple[dict[str, int], frozenset[int]]:
    """Names of all control ids, and the ids that are special."""
    try:
        added = json.loads(path.read_bytes())["added_tokens_decoder"]
        names = {token["content"]: int(number) for number, token in added.items()}
        special = frozenset(int(number) for number, token in added.items() if token.get("special", False))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenFormatError(
            f"{path} does not name the control ids in added_tokens_decoder ({type(error).__name__}: {error}); fetch it "
            "from where tiktoken.model came from"
        ) from error
    reserved = range(first, first + RESERVED_IDS)
    for name, number in names.items():
        if number not in reserved:
            raise TokenFormatError(
                f"{path} gives {name!r} the id {number}; control ids of this vocabulary are {first} to {reserved[-1]}"
            )
    named = set(names.values())
    names |= {f"<|reserved_token_{number}|>": number for number in reserved if number not in named}
    return names, special
