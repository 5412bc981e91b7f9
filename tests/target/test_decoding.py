"""Batched decoding gives what transformers' own generate gives, whatever the batch looks like."""

import pytest
import torch

from tasks.target import decoding
from tasks.target.decoding import decode, greedy
from tasks.target.model import Target


def prompts_of(lengths: list[int], shared: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    beginning = torch.randint(17, 49152, (shared,), generator=generator).tolist()
    return [beginning + torch.randint(17, 49152, (n,), generator=generator).tolist() for n in lengths]


def generated(target: Target, prompt: list[int], count: int) -> list[int]:
    output = target.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=2,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("shared", [0, 1, 24])
def test_greedy_decoding_equals_generate(tiny_loaded: Target, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PREFILL_TOKENS", 40)  # several passes over the prompts
    prompts = prompts_of([3, 9, 17, 33, 5], shared)
    wanted = [generated(tiny_loaded, prompt, 80) for prompt in prompts]
    assert decode(tiny_loaded, prompts, 80) == wanted


def test_rows_end_with_their_first_end_id_and_others_go_on(tiny_loaded: Target) -> None:
    prompts = prompts_of([4, 8, 12, 16])
    whole = decode(tiny_loaded, prompts, 24)
    ends = [whole[0][3], whole[2][10]]
    reported: list[int] = []
    stopped = decode(tiny_loaded, prompts, 24, greedy, ends, reported.append)
    for free, cut in zip(whole, stopped, strict=True):
        first = next((place for place, token in enumerate(free) if token in ends), 23)
        assert cut == free[: first + 1]
    assert sum(reported) == 4


def test_equal_prompts_share_all_but_their_last_id(tiny_loaded: Target) -> None:
    prompt = prompts_of([11])[0]
    assert decode(tiny_loaded, [prompt, prompt], 6) == [generated(tiny_loaded, prompt, 6)] * 2


def test_one_prompt_of_one_id_is_decoded(tiny_loaded: Target) -> None:
    assert decode(tiny_loaded, [[42]], 5) == [generated(tiny_loaded, [42], 5)]
