"""A `tokenizer.json` as a codec, through the library `tokenizers`.

Only tokenizers that work on bytes and treat every piece of text alike are let in: answers are encoded piece by piece
between markers, so that one which adds or eats a space where a text begins cannot give exact ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from schemas.errors import TokenFormatError
from schemas.ragged import Ids
from tasks.formats.codec import check_text
from tasks.formats.pieces import Pieces

# Text that other kinds of tokenizers change: leading and trailing spaces, case, NFD, line ends, NUL, bytes of 3 and 4.
_PROBES = (
    "a",
    " a",
    "  Ab \t",
    "\n\n",
    "\r\n",
    "cafe\u0301 \u212b",
    "a\0b",
    "\u4e2d\u6587",
    "\U0001f999",
    " ,. n't 's",
)

# How byte-level vocabularies write bytes: those that can be seen as themselves, the others as letters from U+0100 on.
_SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _SEEN} | {
    chr(0x100 + place): byte for place, byte in enumerate(sorted({*range(0x100)} - {*_SEEN}))
}


class TokenizerJson:
    """Two tokenizers of one file: as it is, for prompts; and without markers and normaliser, for what was sampled."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.sha256 = hashlib.sha256(content).hexdigest()
        try:
            rules: dict[str, Any] = json.loads(content)
            added = rules["added_tokens"]
            self._prompts: Any = Tokenizer.from_buffer(content)
            bare = {"added_tokens": [], "normalizer": None, "post_processor": None, "truncation": None, "padding": None}
            self._answers: Any = Tokenizer.from_str(json.dumps(rules | bare))
        except Exception as error:  # the library raises nothing more precise
            raise TokenFormatError(f"{path} cannot be read ({error}); fetch the model's tokenizer.json anew") from error
        self._prompts.no_truncation()
        self._prompts.no_padding()
        self.markers: Mapping[str, int] = {token["content"]: token["id"] for token in added}
        self.special_ids = frozenset(token["id"] for token in added if token["special"])
        self.vocab_size = max(self._prompts.get_vocab(with_added_tokens=True).values()) + 1
        self.lossless = set(ByteLevel.alphabet()) <= self._prompts.get_vocab(with_added_tokens=False).keys()
        self._pieces = self._bytes(rules)
        self._check(path)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of text that the model wrote; see `Codec`."""
        check_text(texts)
        return [row.ids for row in self._answers.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of text that the model wrote; see `Codec`."""
        return [np.array(ids, np.int32) for ids in self.encode(texts)]

    def encode_prompt(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of rendered prompts; see `Codec`."""
        check_text(texts)
        return [row.ids for row in self._prompts.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, rows: Sequence[Sequence[int] | Ids]) -> list[str]:
        """Text of ids; see `Codec`."""
        if self._pieces is None:
            return self._library_texts(rows)
        try:
            return self._pieces.texts(rows)
        except IndexError:  # an id that is none has no text for the library
            return self._library_texts(rows)

    def _library_texts(self, rows: Sequence[Sequence[int] | Ids]) -> list[str]:
        lists = [row.tolist() if isinstance(row, np.ndarray) else row for row in rows]
        return self._prompts.decode_batch(lists, skip_special_tokens=False)

    def _bytes(self, rules: Mapping[str, Any]) -> Pieces | None:
        """The bytes of every id, None if the library's decoder does anything but put them together."""
        if (rules.get("decoder") or {}).get("type") != "ByteLevel":
            return None
        pieces = [b""] * self.vocab_size
        for text, number in self._prompts.get_vocab(with_added_tokens=True).items():
            known = all(letter in _BYTES for letter in text)
            pieces[number] = bytes(_BYTES[letter] for letter in text) if known else text.encode()
        found = Pieces(pieces)
        alone = [[number] for number in range(self.vocab_size)]
        return found if found.texts(alone) == self._library_texts(alone) else None

    def _check(self, path: Path) -> None:
        for text, ids, back in zip(_PROBES, encoded := self.encode(_PROBES), self.decode(encoded), strict=True):
            if back != text:
                raise TokenFormatError(
                    f"{path} turns {text!r} into {ids} and back into {back!r}: pieces of an answer between markers "
                    "would not keep their text. Use a target whose tokenizer is byte-level BPE"
                )
        for (marker, number), ids in zip(self.markers.items(), self.encode(list(self.markers)), strict=True):
            if number in ids:
                raise TokenFormatError(
                    f"{path} reads the text {marker!r} as its control id {number} even where it is plain text; eyas "
                    "cannot tell the two apart"
                )
        for marker, back in zip(self.markers, self.decode([[number] for number in self.markers.values()]), strict=True):
            if back != marker:
                raise TokenFormatError(f"{path} writes the marker {marker!r} out as {back!r}; the file is damaged")
