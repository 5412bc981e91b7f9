"""The probe passes for a sound target and fails, with its figures, for one whose states are not its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.errors import ProbeFailed
from schemas.extraction import ExtractionSpec
from schemas.prompts import PROMPTS
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.extract.probe import probe, refuse_failed
from tasks.extract.task import probe_target
from tasks.target.model import Target
from tests.rows import prompt, prompts, run_body, stored

SPEC = ExtractionSpec()
PROMPTS_IDS = [[1, 4093, 198, 26843, 2], [1, 520, 9531], [1, 81, 472, 36, 34, 28, 905, 17, 33]]


def failed(target: Target) -> list[str]:
    checks = probe(target, PROMPTS_IDS, SPEC)
    names = [check.check for check in checks if not check.passed]
    if names:
        with pytest.raises(ProbeFailed, match=names[0]):
            refuse_failed(checks)
    return names


def test_a_sound_target_passes(tiny_loaded: Target) -> None:
    assert failed(tiny_loaded) == []


def test_a_head_that_is_not_the_target_s_is_noticed(tiny_loaded: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = tiny_loaded.capture

    def before_the_last_layer(*arguments: Any, aux_layers: Sequence[int], **options: Any) -> tuple[Tensor, Tensor]:
        states, _ = capture(*arguments, aux_layers=[*aux_layers, 5], **options)
        return states[..., :-64], states[..., -64:]

    monkeypatch.setattr(tiny_loaded, "capture", before_the_last_layer)
    assert failed(tiny_loaded) == ["greedy_agreement"]


def test_a_shifted_layer_is_noticed(tiny_loaded: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = tiny_loaded.capture

    def shifted(*arguments: Any, aux_layers: Sequence[int], **options: Any) -> tuple[Tensor, Tensor]:
        return capture(*arguments, aux_layers=[layer + 1 for layer in aux_layers], **options)

    monkeypatch.setattr(tiny_loaded, "capture", shifted)
    assert failed(tiny_loaded) == ["layer_difference"]


def test_states_that_depend_on_the_batch_are_noticed(tiny_loaded: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = tiny_loaded.capture

    def leaking(ids: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        aux, last = capture(ids, **options)
        return (aux if len(ids) > 1 else torch.roll(aux, 1, dims=1)), last

    monkeypatch.setattr(tiny_loaded, "capture", leaking)
    assert failed(tiny_loaded) == ["batch_difference"]


def test_the_task_returns_its_figures(store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    first = prompt("Hi")
    table = prompts(prompt("word " * 1100), first, prompt("And?", parent=first), prompt("Why is the sky blue?"))
    given = stored("gather_prompts", "train", PROMPTS, [table])
    result: Any = run_body(probe_target, tiny_artifact, given, SPEC, tiny_spec, ComputeSpec())
    figures = {row["check"]: row["value"] for row in result.table.to_pylist()}
    assert figures["greedy_agreement"] >= 0.99
    assert figures["layer_difference"] == 0
