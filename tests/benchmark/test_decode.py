"""Speculative decoding gives what the target alone gives: token for token when greedy, in distribution otherwise."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.benchmark import verify as verify_module
from tasks.benchmark.batch import Answer, Batch, DecodeSettings
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import Drafter, EagleDrafter, NgramDrafter, PlainDrafter, lookup
from tasks.benchmark.verify import Proposal, Uniforms
from tasks.draft.config import SWITCHES
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt
from tests.benchmark.models import Oracle, make_draft, make_prompts, make_settings, make_target

VOCAB = 23


def greedy(target: Target, prompt: RenderedPrompt, settings: DecodeSettings) -> list[int]:
    """Plain greedy decoding of one prompt without any cache."""
    known = list(prompt.ids)
    for _ in range(settings.max_tokens):
        known.append(int(target.lm_head(target.hidden(torch.tensor([known])))[0, -1].argmax()))
        if known[-1] in settings.end_ids:
            break
    return known[len(prompt.ids) :]


@pytest.fixture(scope="module")
def target() -> Target:
    return make_target(VOCAB)


def eagle(target: Target) -> Drafter:
    return EagleDrafter(make_draft(VOCAB, list(range(0, VOCAB, 2))), target)


DRAFTERS: dict[str, Callable[[Target], Drafter]] = {
    "none": lambda target: PlainDrafter(),
    "ngram": lambda target: NgramDrafter(3),
    "eagle": eagle,
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("end_ids", [(), (3, 11)])
def test_greedy_output_is_that_of_plain_greedy_decoding(target: Target, name: str, end_ids: tuple[int, ...]) -> None:
    prompts = make_prompts(12, VOCAB)
    settings = make_settings(end_ids=end_ids)
    answers = decode(target, DRAFTERS[name](target), name, prompts, settings)
    assert [a.output_ids for a in answers] == [greedy(target, prompt, settings) for prompt in prompts]


def test_a_good_draft_changes_only_the_number_of_steps(target: Target) -> None:
    prompts = make_prompts(8, VOCAB)
    settings = make_settings(chain=4, end_ids=(3,), max_tokens=30)
    outputs = {prompt.prompt_id: greedy(target, prompt, settings) for prompt in prompts}
    answers = decode(target, Oracle(outputs, VOCAB), "oracle", prompts, settings)
    assert {a.prompt.prompt_id: a.output_ids for a in answers} == outputs
    assert sum(a.verify_steps for a in answers) < 0.4 * sum(map(len, outputs.values()))


@pytest.mark.parametrize("changes", [{}, dict.fromkeys(SWITCHES, True), {"hidden_size": 20}], ids=str)
def test_the_eagle_draft_scores_what_a_full_recomputation_scores(target: Target, changes: dict[str, Any]) -> None:
    """Row by row, from the algorithm: true states up to the last verified token, then the draft's own chain."""
    draft = make_draft(VOCAB, list(range(0, VOCAB, 2)), **changes)
    scored: list[Tensor] = []
    draft.lm_head.register_forward_hook(lambda module, arguments, output: scored.append(output.clone()))
    compared = 0

    class Checked(EagleDrafter):
        def propose(self, batch: Batch, uniforms: Uniforms) -> Proposal:
            nonlocal compared
            scored.clear()
            proposal = super().propose(batch, uniforms)
            steps = list(scored)
            for row in batch.active.tolist():
                known = batch.tokens[row, : batch.lengths[row]]
                wanted = recompute(self, known, proposal.tokens[row])
                torch.testing.assert_close(torch.stack([s[row] for s in steps]), wanted, rtol=1e-3, atol=1e-3)
                compared += 1
            return proposal

    settings = make_settings(temperatures=(0.0, 0.8), max_tokens=12, end_ids=(3,))
    decode(target, Checked(draft, target), "trained", make_prompts(4, VOCAB), settings)
    assert compared > 30


def recompute(drafter: EagleDrafter, known: Tensor, drafted: Tensor) -> Tensor:
    """Logits (chain, draft_vocab) of a drafted chain, with no cache, no batch and no mask."""
    draft, target = drafter.draft, drafter.target
    aux, _ = target.capture(known[None, :-1], aux_layers=drafter.aux_layers)
    keys, values, logits = [], [], []
    embedding = draft.embedding(target.model.get_input_embeddings().weight)

    def row(token: Tensor, state: Tensor, position: int) -> Tensor:
        query, key, value = draft.project(embedding[token][None], state[None], torch.tensor([position]))
        keys.append(key[0])
        values.append(value[0])
        heads = []
        for head in range(draft.config.num_attention_heads):
            shared = head * draft.config.num_key_value_heads // draft.config.num_attention_heads
            scores = torch.stack([query[0, head] @ key[shared] for key in keys]) / draft.config.head_dim**0.5
            heads.append(sum(w * value[shared] for w, value in zip(scores.softmax(0), values, strict=True)))
        return draft.finish(torch.cat(heads)[None], state[None])[0]

    output = torch.empty(0)
    for t in range(len(known) - 1):
        output = row(known[t + 1], draft.fuse(aux[0, t]), t)
    logits.append(draft.logits(output))
    for step, token in enumerate(drafted[:-1]):
        output = row(token, output, len(known) - 1 + step)
        logits.append(draft.logits(output))
    return torch.stack(logits)


SMALL = 6
PROMPT = (1, 4, 2, 1)


def exact_distribution(target: Target, temperature: float, length: int) -> np.ndarray:
    """The probability of each continuation of PROMPT, (SMALL,) * length."""
    continuations = torch.cartesian_prod(*[torch.arange(SMALL)] * length)
    ids = torch.cat([torch.tensor(PROMPT).expand(len(continuations), -1), continuations], dim=1)
    log_p = (target.lm_head(target.hidden(ids)) / temperature).log_softmax(-1)[:, len(PROMPT) - 1 : -1]
    return log_p.gather(2, continuations[..., None]).sum((1, 2)).exp().double().numpy()


def excess(target: Target, drafter: Drafter, name: str) -> float:
    """How many standard deviations the chi-square of the first three tokens lies above its mean."""
    return excess_of(target, lambda prompts, settings: decode(target, drafter, name, prompts, settings))


def excess_of(
    target: Target,
    make: Callable[[list[RenderedPrompt], DecodeSettings], list[Answer]],
    samples: int = 6000,
    temperature: float = 0.7,
) -> float:
    """The same of answers that are made in any way."""
    prompts = [RenderedPrompt(f"{number:032x}", "toy", PROMPT) for number in range(samples)]
    answers = make(prompts, make_settings(temperatures=(temperature,), max_tokens=4, chain=2))
    counts = Counter(tuple(answer.output_ids[:3]) for answer in answers)
    expected = samples * exact_distribution(target, temperature, 3)
    observed = np.array([counts[outcome] for outcome in itertools.product(range(SMALL), repeat=3)], dtype=float)
    order = np.argsort(expected)
    cells = np.searchsorted(np.cumsum(expected[order]), np.arange(20, samples, 20))  # cells of 20 expected or more
    edges = np.unique(np.r_[0, cells])
    expected, observed = np.add.reduceat(expected[order], edges), np.add.reduceat(observed[order], edges)
    freedom = len(expected) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


SAMPLED: dict[str, Callable[[Target], Drafter]] = {
    "none": lambda target: PlainDrafter(),
    "ngram": lambda target: NgramDrafter(2),
    "flat draft": lambda target: EagleDrafter(make_draft(SMALL, [0, 2, 3, 5], sharpness=0.3), target),
    "sharp draft": lambda target: EagleDrafter(make_draft(SMALL, [0, 1, 2, 4], sharpness=2), target),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_output_has_the_distribution_of_the_target(name: str) -> None:
    small = make_target(SMALL, seed=3, spread=0.25)
    assert excess(small, SAMPLED[name](small), name) < 4


def test_that_check_sees_a_wrong_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    small = make_target(SMALL, seed=3, spread=0.25)
    monkeypatch.setattr(verify_module, "residual", lambda target, *rest: target)
    assert excess(small, SAMPLED["sharp draft"](small), "sharp draft") > 10


def test_an_answer_does_not_depend_on_its_batch_mates(target: Target) -> None:
    prompts = make_prompts(9, VOCAB)
    settings = make_settings(temperatures=(0.7,), end_ids=(3,))
    together = decode(target, eagle(target), "trained", prompts, settings)
    alone = [decode(target, eagle(target), "trained", [prompt], settings)[0] for prompt in prompts]
    assert [a.output_ids for a in together] == [a.output_ids for a in alone]
    assert [a.accepted_by_position for a in together] == [a.accepted_by_position for a in alone]


@pytest.mark.parametrize("name", ["ngram", "eagle"])
def test_counts_agree_with_the_output(target: Target, name: str) -> None:
    settings = make_settings(temperatures=(0.0, 1.0), end_ids=(3,), max_tokens=23)
    answers = decode(target, DRAFTERS[name](target), name, make_prompts(10, VOCAB), settings)
    assert sum(a.accepted for a in answers) > 20
    for a in answers:
        made = 1 + a.verify_steps + a.accepted  # the prefill's token, and per step the accepted drafts and one more
        if len(a.output_ids) < settings.max_tokens:
            assert a.output_ids[-1] == 3
            assert made - len(a.output_ids) in (0, 1)  # 1 where the end id was itself a draft
        else:
            assert 0 <= made - settings.max_tokens <= settings.chain
        assert a.accepted_by_position == sorted(a.accepted_by_position, reverse=True)
        assert a.accepted <= a.drafted <= settings.chain * a.verify_steps
        if name == "eagle":
            assert a.drafted == settings.chain * a.verify_steps


def test_temperatures_of_one_batch_equal_runs_of_their_own(target: Target) -> None:
    prompts, settings = make_prompts(5, VOCAB), make_settings(temperatures=(0.0, 0.7))
    both = decode(target, eagle(target), "trained", prompts, settings)
    for index, temperature in enumerate(settings.temperatures):
        single = dataclasses.replace(settings, temperatures=(temperature,))
        alone = decode(target, eagle(target), "trained", prompts, single)
        assert [a.output_ids for a in both[index::2]] == [a.output_ids for a in alone]


def test_lookup_takes_the_latest_occurrence_of_the_longest_suffix() -> None:
    known = np.array([1, 2, 3, 9, 2, 3, 8, 1, 2, 3])
    assert lookup(known, 3, 4).tolist() == [9, 2, 3, 8]  # 1 2 3 occurs once before
    assert lookup(known, 2, 4).tolist() == [8, 1, 2, 3]  # 2 3: the later one
    assert lookup(known, 1, 2).tolist() == [8, 1]
    assert lookup(np.array([1, 2, 3]), 3, 4).tolist() == []
    assert lookup(np.array([5]), 3, 4).tolist() == []
