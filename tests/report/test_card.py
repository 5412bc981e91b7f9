"""The folder that is given away holds the exported draft and a card whose figures are those of the run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from schemas.corpus import COVERAGE, LOST_MASS, VOCABULARY
from schemas.measures import ACCEPTANCE
from schemas.recipe import Recipe
from schemas.sections import DatasetSpec, ExportSpec, TargetSpec
from tasks.artifacts.artifact import Artifact, Rows, Shards
from tasks.artifacts.workspace import Workspace
from tasks.benchmark.statistics import measure
from tasks.report.card import model_card, place, write_release
from tasks.report.steps import StepRow
from tests.rows import prompt_id

RECIPE = Recipe(
    name="small",
    target=TargetSpec(model="org/target"),
    datasets=[
        DatasetSpec(name="chat", source="hub:org/chat", revision="a" * 40, licence="mit"),
        DatasetSpec(name="uses", source="uses.jsonl", split="benchmark"),
    ],
    export=ExportSpec(licence="apache-2.0", layouts=["speculators"]),
)
TENSORS = {"fc.weight": torch.ones(2, 3)}


def row(label: str, artifact: Artifact) -> StepRow:
    return StepRow(label.split()[0], label, artifact, False, 3, 0, None, 9)


def export(name: str) -> Shards:
    space = Workspace(f"export_draft/{name}.parquet")
    save_file(TENSORS, space.path("model.safetensors"))
    space.path("config.json").write_text("{}")
    space.add_file("config", "config.json")
    space.add_file("weights", "model.safetensors")
    return space.publish()


def vocabulary() -> Shards:
    space = Workspace("build_vocabulary/given.parquet")
    space.add_table(
        "vocabulary",
        "vocabulary.parquet",
        VOCABULARY.table([{"draft_id": 0, "target_id": 5, "count": 9, "forced": False}]),
        VOCABULARY,
    )
    coverage = [
        {"dataset": "chat", "split": split, "tokens": 1000, "covered": covered}
        for split, covered in (("train", 990), ("heldout", 970))
    ]
    space.add_table("coverage", "coverage.parquet", COVERAGE.table(coverage), COVERAGE)
    return space.publish({"size": 32000})


@pytest.fixture
def rows(store: Path) -> list[StepRow]:
    lost = LOST_MASS.table([{"dataset": "chat", "positions": 200, "lost_mass": 0.0123, "best_outside": 3}])
    return [
        row("target", Shards(shards=(), facts={"model": "org/target"})),
        row("corpus", Shards(shards=(), facts={"sequences": 41})),
        row("vocabulary", vocabulary()),
        row("lost-mass", Rows(contract="lost_mass", table=lost)),
        row("initialise", Shards(shards=(), facts={"parent": "org/parent"})),
        row("train", Shards(shards=(), facts={"steps": 1234})),
        row("export untrained", export("untrained")),
        row("export trained", export("trained")),
        row("export speculators", export("speculators")),
    ]


def acceptance() -> pa.Table:
    return ACCEPTANCE.table(
        {
            "prompt_id": prompt_id(number),
            "dataset": "uses",
            "drafter": "trained",
            "temperature": 0.0,
            "chain": 3,
            "output_ids": [5],
            "verify_steps": 10,
            "drafted": 30,
            "accepted": 8,
            "accepted_by_position": [5, 2, 1],
        }
        for number in range(4)
    )


def test_the_card_says_where_the_draft_comes_from_and_what_it_reaches(rows: list[StepRow]) -> None:
    card = model_card(RECIPE, rows, measure(acceptance(), 100, 0))
    _, front, body = card.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert (fields["license"], fields["base_model"], fields["datasets"]) == ("apache-2.0", "org/target", ["org/chat"])
    assert "| trained | 0 | 1.800 |" in body
    assert "| uses | 0 | 1.800 |" in body
    assert "1,234 optimiser steps from the draft `org/parent`" in body
    assert "41 sequences" in body
    assert "| chat | `hub:org/chat` | aaaaaaaaaaaa | mit |" in body
    assert "| chat | heldout | 1,000 | 97.00% | 1.23% | 1.50% |" in body
    assert "--speculative-num-draft-tokens 4" in body
    assert '"num_speculative_tokens": 3' in body
    recipe = yaml.safe_load(body.split("```yaml\n")[1].split("```")[0])
    assert recipe["name"] == "small"
    assert "endpoints" not in recipe["generation"]["serving"]


def test_the_folder_has_every_layout_and_can_be_written_again(rows: list[StepRow], tmp_path: Path) -> None:
    for _ in range(2):
        folder = write_release(tmp_path / "draft", RECIPE, rows, measure(acceptance(), 100, 0))
        assert folder is not None
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        assert names == [
            "README.md",
            "config.json",
            "model.safetensors",
            "speculators/config.json",
            "speculators/model.safetensors",
        ]
        assert torch.equal(load_file(folder / "model.safetensors")["fc.weight"], TENSORS["fc.weight"])


def test_an_edited_config_does_not_change_the_store(rows: list[StepRow], tmp_path: Path) -> None:
    folder = write_release(tmp_path / "draft", RECIPE, rows, measure(acceptance(), 100, 0))
    assert folder is not None
    (folder / "config.json").write_text("edited")
    exported = rows[7].artifact
    assert isinstance(exported, Shards)
    assert exported.file("config").read_text() == "{}"


def test_without_an_export_there_is_no_folder(rows: list[StepRow], tmp_path: Path) -> None:
    assert write_release(tmp_path / "draft", RECIPE, rows[:6], measure(acceptance(), 100, 0)) is None
    assert not (tmp_path / "draft").exists()


def test_weights_are_not_kept_twice_on_one_disk(tmp_path: Path) -> None:
    source = tmp_path / "model.safetensors"
    source.write_bytes(b"weights")
    place(source, tmp_path / "other" / "model.safetensors")
    assert (tmp_path / "other" / "model.safetensors").stat().st_ino == source.stat().st_ino
