"""A server's own counters, read before and after: what was drafted and accepted meanwhile, if nobody else asked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.errors import EngineError
from tasks.benchmark.served.client import Client
from tasks.benchmark.served.spoken import Counts

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*?)(?:_total)?(?:\{(?P<labels>[^}]*)\})? (?P<value>[-+\w.]+)$")
_POSITION = re.compile(r'position="(\d+)"')
_GENERATED = {"vllm:": "generation_tokens", "llamacpp:": "tokens_predicted", "sglang:": "generation_tokens"}


@dataclass(frozen=True)
class Reading:
    """The counters at one moment; those that the server does not have are 0."""

    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...]
    generated: int

    @classmethod
    def of(cls, client: Client) -> Reading:
        """Read the server's /metrics.

        Raises:
            EngineError: it has none.
        """
        return parse(client.get_text("/metrics"), client.dialect.prefix)

    def since(self, before: Reading, places: int) -> Counts:
        """What was counted between two readings, for chains of `places` tokens."""
        old = dict(enumerate(before.by_position))
        new = dict(enumerate(self.by_position))
        by_position = tuple(new.get(place, 0) - old.get(place, 0) for place in range(places))
        return Counts(
            self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted, by_position
        )


def parse(text: str, prefix: str) -> Reading:
    """The counters in a page of Prometheus text; several engines of one server are summed."""
    sums: dict[str, float] = {}
    places: dict[int, float] = {}
    for line in text.splitlines():
        if not (found := _LINE.match(line)) or not found["name"].startswith(prefix):
            continue
        name = found["name"].removeprefix(prefix)
        if name == "spec_decode_num_accepted_tokens_per_pos" and (position := _POSITION.search(found["labels"] or "")):
            places[int(position[1])] = places.get(int(position[1]), 0) + float(found["value"])
        else:
            sums[name] = sums.get(name, 0) + float(found["value"])
    return Reading(
        drafts=int(sums.get("spec_decode_num_drafts", 0)),
        drafted=int(sums.get("spec_decode_num_draft_tokens", 0)),
        accepted=int(sums.get("spec_decode_num_accepted_tokens", 0)),
        by_position=tuple(int(places.get(place, 0)) for place in range(max(places, default=-1) + 1)),
        generated=int(sums.get(_GENERATED[prefix], 0)),
    )


def require_alone(before: Reading, after: Reading, tokens: int, where: str) -> None:
    """Refuse counters that others have moved.

    Raises:
        EngineError: the server generated other tokens than ours meanwhile.
    """
    if (generated := after.generated - before.generated) != tokens:
        raise EngineError(
            f"{where} generated {generated} tokens while {tokens} were ours: somebody else uses the server, so its "
            "counters say nothing about this draft; stop the other traffic, or let eyas start a server of its own"
        )
