"""What a provider's completion_tokens are made of: pinned by the recipe, read off its answers, or the usual.

Two things differ between providers: whether the end id is billed, and whether reasoning is inside the count or beside
it. That makes four rules, and an answer that ended by itself tells which of them its count fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    whole: bool = True  # no white space can have been taken out of it, one id of which looks like an end id unbilled


@dataclass(frozen=True)
class Counting:
    """The rule of one provider, and how it is known.

    `sure` is False where the answers do not tell an end id that is not billed from white space that was trimmed.
    """

    rule: CountingRule = _RULES[0]
    source: Literal["pinned", "inferred", "default"] = "default"
    sure: bool = False

    def otherwise(self) -> Counting:
        """The same, but for whether the end id is billed."""
        return Counting(self.rule.model_copy(update={"end_counted": not self.rule.end_counted}))

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
    as many the usual one is taken: where no reasoning was billed, inside and beside are the same. Whether the end id is
    billed is told by answers that are whole, where there are enough.
    """
    found = {provider: Counting(rule, "pinned", sure=True) for provider, rule in pinned.items()}
    by_provider: dict[str, list[Observation]] = {}
    for observation in observations:
        by_provider.setdefault(observation.provider, []).append(observation)
    for provider, seen in by_provider.items():
        whole = _fitting([observation for observation in seen if observation.whole], _RULES)
        same_end = [rule for rule in _RULES if whole is None or rule.end_counted == whole.end_counted]
        if rule := _fitting(seen, same_end) or whole:
            found.setdefault(provider, Counting(rule, "inferred", sure=whole is not None))
    return found


def _fitting(seen: Sequence[Observation], rules: Sequence[CountingRule]) -> CountingRule | None:
    """The rule that most answers of a provider fit, if they are enough."""
    fits = [
        sum(Counting(rule).billed(one.completion_tokens, one.reasoning_tokens, True) == one.rebuilt for one in seen)
        for rule in rules
    ]
    best = max(range(len(rules)), key=lambda place: (fits[place], -place))
    return rules[best] if fits[best] >= FEWEST_ROWS and 2 * fits[best] > len(seen) else None
