"""A run that cannot go on says why, not that something else did not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.runs import Runs, Server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("section", "field", "value", "cause"),
    [
        ("audit", "min_rows", 1000, "tasks.validate.audit.AuditFailed: the audit stops the flow"),
        ("target", "device", "gpu0", "schemas.errors.TargetError: the target in"),
    ],
)
def test_the_first_cause_is_what_the_run_ends_with(
    section: str, field: str, value: Any, cause: str, tiny_recipe: Path, server: Server, tmp_path: Path
) -> None:
    content = yaml.safe_load(tiny_recipe.read_text())
    content.setdefault(section, {})[field] = value
    recipe = tmp_path / "failing.yaml"
    recipe.write_text(yaml.safe_dump(content))
    with Runs(tmp_path / "store", server, tmp_path / "log") as runs:
        assert runs.run(recipe) == 1
        said = runs.log.read_text()
    assert cause in said.rsplit("Traceback", 1)[-1]
    assert "UnfinishedRun" not in said
