"""Imports run one way: schemas <- tasks <- flows <- deployments, and no step knows another step."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("schemas", "tasks", "flows", "deployments")
STEPS = {"prompts", "generate", "reconstruct", "validate", "corpus", "extract", "train", "export", "benchmark"}
FILES = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")]


def imported(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_its_layer_or_below(path: Path) -> None:
    layer, *inside = path.relative_to(ROOT).with_suffix("").parts
    above = LAYERS[LAYERS.index(layer) + 1 :]
    names = imported(path)
    assert not [name for name in names if name.split(".")[0] in above]
    if layer == "tasks" and inside[0] in STEPS:
        others = {f"tasks.{step}" for step in (STEPS | {"report"}) - {inside[0]}}
        assert not [name for name in names if ".".join(name.split(".")[:2]) in others]


def test_steps_that_need_no_tensors_start_without_torch() -> None:
    light = [ROOT / "tasks" / step for step in ("prompts", "reconstruct", "validate", "corpus")]
    names = {name.split(".")[0] for folder in light for path in folder.rglob("*.py") for name in imported(path)}
    assert names
    assert not names & {"torch", "transformers"}
