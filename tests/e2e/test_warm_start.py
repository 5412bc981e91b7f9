"""An exported draft is gone on from: with its record, and as a stranger who has only SGLang's ids finds it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.e2e.runs import Runs, Server, committed

pytestmark = pytest.mark.slow


def exported(store: Path) -> Path:
    """The folder of the trained draft's export: of the two, the one whose weights are not the untrained ones."""
    folders = [path.parent for path in (store / "data" / "export_draft").glob("*/eyas.json")]
    return next(folder for folder in folders if json.loads((folder / "eyas.json").read_bytes())["steps"])


def recipe_from(tiny_recipe: Path, folder: Path, **changes: Any) -> Path:
    content = yaml.safe_load(tiny_recipe.read_text())
    content["training"] |= {"epochs": 1, "learning_rate": 1e-5}
    content["draft"] = {"parent": {"model": str(folder / "parent"), "probe_sequences": 6} | changes}
    path = folder / "tuned.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("with_record", [True, False])
def test_a_draft_is_fine_tuned_from_an_exported_one(
    tiny_recipe: Path, finished_store: Path, server: Server, tmp_path: Path, with_record: bool
) -> None:
    store = Path(shutil.copytree(finished_store, tmp_path / "store"))
    parent = Path(shutil.copytree(exported(store), tmp_path / "parent"))
    if not with_record:
        (parent / "eyas.json").unlink()
        fields = json.loads((parent / "config.json").read_bytes())
        del fields["eagle_aux_hidden_state_layer_ids"]  # SGLang's ids are left, which can be read in two ways
        (parent / "config.json").write_text(json.dumps(fields))
    before = committed(store).keys()
    with Runs(store, server, tmp_path / "log") as runs:
        assert runs.run(recipe_from(tiny_recipe, tmp_path)) == 0, runs.said()
    new = [key for key in committed(store) if key not in before]
    tasks = [key.split("/")[0] for key in new]
    probed = set() if with_record else {"choose_reading", "extract_states", "sample_sequences"}
    made = {"simulate_acceptance", "measure_acceptance"}
    same_layers = {"adopt_parent", "adopt_vocabulary", "initialise_from_parent", "train_draft", "export_draft"}
    assert set(tasks) == same_layers | made | probed  # the vocabulary and what it loses are cached
    tuned, old = (load_file(folder / "model.safetensors") for folder in (_new_export(store, before), parent))
    assert torch.equal(tuned["d2t"], old["d2t"])
    assert torch.equal(tuned["t2d"], old["t2d"])
    moved = (tuned["fc.weight"].float() - old["fc.weight"].float()).abs().max()
    assert moved < 0.05 * old["fc.weight"].float().abs().max()


def _new_export(store: Path, before: Any) -> Path:
    keys = [key for key in committed(store) if key.startswith("export_draft/") and key not in before]
    folders = [store / "data" / key.removesuffix(".parquet") for key in keys]
    return next(folder for folder in folders if json.loads((folder / "eyas.json").read_bytes())["steps"])
