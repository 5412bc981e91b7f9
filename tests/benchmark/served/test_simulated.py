"""Counts that are foreseen without decoding are those that decoding gives."""

from __future__ import annotations

import pytest

from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import EagleDrafter
from tasks.benchmark.served.simulated import Answered, survivals, walk
from tests.benchmark.models import make_draft, make_prompts, make_settings, make_target

VOCAB = 23


@pytest.mark.parametrize("switches", [{}, {"norm_before_residual": True}, {"norm_output": True}], ids=str)
def test_a_walk_over_survivals_counts_what_the_loop_counts(switches: dict[str, bool]) -> None:
    target = make_target(VOCAB)
    draft = make_draft(VOCAB, list(range(0, VOCAB, 2)))
    draft.config = draft.config.model_copy(update=switches)
    settings = make_settings(max_tokens=20)
    prompts = make_prompts(12, VOCAB)
    answers = decode(target, EagleDrafter(draft, target), "trained", prompts, settings)
    longer = decode(target, EagleDrafter(draft, target), "trained", prompts, make_settings(max_tokens=23))
    assert sum(answer.accepted for answer in answers) > 5
    for answer, whole in zip(answers, longer, strict=True):
        answered = Answered(answer.prompt.ids, tuple(answer.output_ids), tuple(whole.output_ids[20:]))
        survived = survivals(draft, target, draft.config.aux_layers, answered, settings.chain)
        counts = walk(survived, 20, settings.chain, "whole")
        assert (counts.verify_steps, counts.drafted, list(counts.by_position or ())) == (
            answer.verify_steps,
            answer.drafted,
            answer.accepted_by_position,
        )


def test_what_does_not_fit_is_not_drafted() -> None:
    # 7 tokens: the prefill's; 3 drafts and one; then 2 are left, so one draft; and a step without a draft
    counts = walk([3, 0, 0, 0, 0, 0], 7, 3, "fitting")
    assert (counts.verify_steps, counts.drafted, counts.accepted, counts.by_position) == (2, 4, 3, (1, 1, 1))
    assert walk([3, 0, 0, 0, 1, 0], 7, 3, "whole") == type(counts)(2, 6, 4, (2, 1, 1))
