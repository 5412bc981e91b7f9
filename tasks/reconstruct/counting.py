"""What a provider's completion_tokens are made of: pinned by the recipe, read off its answers, or the usual.

Two things differ between providers: whether the end id is billed, and whether reasoning is inside the count or beside
it. That makes four rules, and an answer that ended by itself tells which of them its count fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from schemas.sections import CountingRule

FEWEST_ROWS = 5  # that a rule must fit before it is inferred

_RULES = tuple(
    CountingRule(end_counted=end, reasoning_inside=inside) for inside in (True, False) for end in (True, False)
)


class Observation(NamedTuple):
    """An answer that ended by itself and can be read in one way only."""

    provider: str
    rebuilt: int  # ids, the end id among them
    completion_tokens: int
    reasoning_tokens: int | None


@dataclass(frozen=True)
class Counting:
    """The rule of one provider, and how it is known."""

    rule: CountingRule = _RULES[0]
    source: Literal["pinned", "inferred", "default"] = "default"

    def billed(self, completion_tokens: int | None, reasoning_tokens: int | None, ended: bool) -> int | None:
        """How many ids the answer has by its count; None if the count says nothing.

        Args:
            completion_tokens: as billed.
            reasoning_tokens: as billed.
            ended: whether the answer's last id is an end id.
        """
        if completion_tokens is None:
            return None
        beside = 0
        if not self.rule.reasoning_inside:
            if reasoning_tokens is None:
                return None  # billed somewhere that was not told
            beside = reasoning_tokens
        return completion_tokens + beside + (ended and not self.rule.end_counted)


USUAL = Counting()


def counting_rules(observations: Iterable[Observation], pinned: Mapping[str, CountingRule]) -> dict[str, Counting]:
    """The rule of every provider that is pinned or was observed; of others it is `USUAL`.

    A rule is inferred if it fits more than half of a provider's answers, and at least `FEWEST_ROWS`. Of rules that fit
    as many the usual one is taken: where no reasoning was billed, inside and beside are the same.
    """
    seen: Counter[str] = Counter()
    fits: dict[str, Counter[int]] = {}
    for provider, rebuilt, completion_tokens, reasoning_tokens in observations:
        seen[provider] += 1
        fitting = fits.setdefault(provider, Counter())
        for place, rule in enumerate(_RULES):
            fitting[place] += Counting(rule).billed(completion_tokens, reasoning_tokens, True) == rebuilt
    found = {provider: Counting(rule, "pinned") for provider, rule in pinned.items()}
    for provider, fitting in fits.items():
        best = max(range(len(_RULES)), key=lambda place: (fitting[place], -place))
        if fitting[best] >= FEWEST_ROWS and 2 * fitting[best] > seen[provider]:
            found.setdefault(provider, Counting(_RULES[best], "inferred"))
    return found
