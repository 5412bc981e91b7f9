"""A format bound to one of the real tokenizers, and what tests ask of it, in ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from schemas.ragged import Ids
from tasks.formats.codec import Codec
from tasks.formats.format import Fault, Opening, Part, Reply, Said, TokenFormat
from tasks.formats.registry import bind, recognise
from tests.formats import templates
from tests.tokenizers import codec


@dataclass(frozen=True)
class Bound:
    """One format with one tokenizer."""

    codec: Codec
    format: TokenFormat

    def ids(self, parts: Sequence[Part]) -> list[int]:
        """Texts encoded each on its own, ids as they are."""
        rows = [self.codec.encode([part])[0] if isinstance(part, str) else [part] for part in parts]
        return [number for row in rows for number in row]

    def all(
        self, reasoning: str | None, content: str | None, opening: Opening, ended: bool = True
    ) -> list[tuple[list[int], str]]:
        """The ids of every reading, and why there is doubt."""
        readings = self.format.readings(Said(reasoning, content, ended), opening)
        assert not isinstance(readings, Fault), readings
        return [(self.ids(reading.parts), reading.doubt) for reading in readings]

    def only(self, reasoning: str | None, content: str | None, opening: Opening, ended: bool = True) -> list[int]:
        """The ids of an answer that can be read in one way."""
        ((ids, doubt),) = self.all(reasoning, content, opening, ended)
        assert not doubt
        return ids

    def refused(self, reasoning: str | None, content: str | None, opening: Opening, ended: bool = True) -> str:
        """Why a text cannot be read."""
        readings = self.format.readings(Said(reasoning, content, ended), opening)
        assert isinstance(readings, Fault), readings
        return readings.reason

    def fault(self, prompt: str, completion: Sequence[Part], finish_reason: str = "stop") -> str:
        """What is wrong with an answer's ids; empty if nothing is."""
        rows = [array(self.codec.encode_prompt([prompt])[0])], [array(self.ids(completion))]
        (found,) = self.format.faults(*rows, [finish_reason])
        return found.reason if found else ""

    def opening(self, prompt: str) -> Opening:
        """How a prompt leaves the reasoning."""
        return self.format.opening(array(self.codec.encode_prompt([prompt])[0]))

    def reply(self, completion: Sequence[Part], opening: Opening) -> Reply:
        """An answer taken apart."""
        return self.format.reply(array(self.ids(completion)), opening)


@cache
def bound(name: str, tokenizer: str) -> Bound:
    """A format with a tokenizer of its family."""
    found = codec(tokenizer)
    return Bound(found, bind(name, found))


def named(tokenizer: str, model: str = "") -> str:
    """The format that a tokenizer is recognised by, together with the template of a model."""
    return recognise(codec(tokenizer), templates.template(model or tokenizer))


def array(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.int32)
