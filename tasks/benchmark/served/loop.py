"""eyas' own speculative decoding as an engine: as many prompts in a batch as a pass has requests in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from schemas.benchmarking import SpeculationSpec
from tasks.benchmark.batch import Answer, DecodeSettings
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import Drafter
from tasks.benchmark.served.conversations import Asked
from tasks.benchmark.served.passes import Setting, Take
from tasks.benchmark.served.spoken import Counts, Spoken
from tasks.benchmark.tree import TreeDrafter, decode_tree
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt

Decode = Callable[[Sequence[RenderedPrompt], DecodeSettings, Callable[[int], None]], list[Answer]]


class LoopSpeaker:
    """Decodes in this process.

    Args:
        decode: decodes one batch with a fresh drafter.
        chain: drafts that can be accepted at once, 0 without a drafter.
        end_ids: of the target.
        seed: the recipe's.
    """

    counted_by = "loop"

    def __init__(self, decode: Decode, chain: int, end_ids: Sequence[int], seed: int) -> None:
        self.decode, self.chain, self.end_ids, self.seed = decode, chain, tuple(end_ids), seed

    def speak(self, asked: Sequence[Asked], setting: Setting, max_tokens: int, take: Take) -> Counts | None:
        """See `Speaker`."""
        settings = DecodeSettings(
            temperatures=(setting.temperature,),
            chain=self.chain,
            max_tokens=max_tokens,
            end_ids=self.end_ids,
            seed=self.seed,
        )
        answers: list[Answer] = []
        ordered = sorted(asked, key=lambda one: (len(one.prompt.ids), one.prompt.prompt_id))
        for start in range(0, len(ordered), setting.concurrency):
            batch = ordered[start : start + setting.concurrency]
            clock = [time.perf_counter()]  # its start, its prefill's end, and the end of each step
            made = self.decode(
                [one.prompt for one in batch],
                settings,
                lambda ended, clock=clock: clock.append(time.perf_counter()),
            )
            for turn, answer in zip(batch, made, strict=True):
                ended = answer.output_ids[-1] in settings.end_ids
                take(turn, _spoken(answer, clock, "stop" if ended else "length"))
            answers += made
        return total_of(answers, self.chain)


def chains_of(target: Target, make: Callable[[], Drafter], name: str) -> Decode:
    """Chains of any drafter; its name seeds the random numbers."""
    return lambda prompts, settings, report: decode(target, make(), name, prompts, settings, report)


def trees_of(target: Target, draft: Eagle3Draft, speculation: SpeculationSpec) -> Decode:
    """Trees of an EAGLE-3 draft."""

    def decode_batch(
        prompts: Sequence[RenderedPrompt], settings: DecodeSettings, report: Callable[[int], None]
    ) -> list[Answer]:
        drafter = TreeDrafter(draft, target, speculation.top_k, speculation.verified)
        return decode_tree(target, drafter, prompts, settings, report)

    return decode_batch


def total_of(answers: Sequence[Answer], chain: int) -> Counts:
    """The counts of all answers together."""
    return Counts(
        sum(answer.verify_steps for answer in answers),
        sum(answer.drafted for answer in answers),
        sum(answer.accepted for answer in answers),
        tuple(sum(answer.accepted_by_position[place] for answer in answers) for place in range(chain)),
    )


def _spoken(answer: Answer, clock: Sequence[float], finish: str) -> Spoken:
    """A row takes part in every step of its batch until it ends, so its steps say when that was."""
    counts = Counts(answer.verify_steps, answer.drafted, answer.accepted, tuple(answer.accepted_by_position))
    return Spoken(
        tuple(answer.output_ids), finish, counts, clock[1] - clock[0], clock[1 + answer.verify_steps] - clock[0]
    )
