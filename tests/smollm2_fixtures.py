"""The real SmolLM2-135M of the wheel, converted once per process that asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.target.convert import CONVERTIBLE, convert_wheel
from tasks.target.source import locate_target, wheel_gguf
from tasks.target.task import adopt_folder


@pytest.fixture(scope="session")
def smollm2_spec(tmp_path_factory: pytest.TempPathFactory) -> TargetSpec:
    """The recipe's target section for a folder with SmolLM2."""
    folder = tmp_path_factory.mktemp("smollm2")
    convert_wheel(CONVERTIBLE, wheel_gguf(CONVERTIBLE), folder)
    return TargetSpec(model=str(folder))


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_spec: TargetSpec) -> Path:
    """Its Hugging Face folder."""
    return Path(smollm2_spec.model)


@pytest.fixture(scope="session")
def smollm2(smollm2_spec: TargetSpec) -> Shards:
    """What `prepare_target` returns for it."""
    return adopt_folder(smollm2_spec, locate_target(smollm2_spec))
