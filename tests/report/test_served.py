"""The page of a benchmark: every table on it, both colour schemes, nothing from elsewhere; and its history."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from schemas.benchmarking import BenchmarkRecipe
from schemas.errors import EngineError
from schemas.lossless import DIFFERENCES, SAMPLES
from schemas.parity import AS_CONFIGURED, SURVIVALS
from schemas.served import HISTORY, SERVED, SERVED_PASS
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.files import read_table
from tasks.artifacts.workspace import Workspace
from tasks.benchmark.served.figures import Place
from tasks.benchmark.served.findings import Findings, find
from tasks.report.served import report_benchmark
from tests.benchmark.served.rows import passes_of, served, served_row

PLACE = Place("vllm", "draft", 3, 1, 4, 0.0, 1)


def recipe(**changes: Any) -> BenchmarkRecipe:
    fields = {
        "name": "page",
        "target": {"model": "t"},
        "draft": {"source": "d"},
        "datasets": [{"name": "chat", "source": "x.jsonl"}],
        "engines": [{"engine": "transformers"}],
    }
    return BenchmarkRecipe.model_validate(fields | changes)


def findings_of(given: BenchmarkRecipe, lost: int = 0, kind: str = "near_tie") -> Findings:
    """Two prompts in one engine, `lost` accepted drafts fewer than a baseline had, one difference."""
    plain = [served_row("a"), served_row("b")]
    draft = [served_row("a", (3 - lost, 1, 0)), served_row("b", (2, 2))]
    space = Workspace(f"collect_benchmark/{lost}.parquet")
    space.add_table("served", "served.parquet", served(*plain, *draft), SERVED)
    passes = pa.concat_tables([passes_of(plain, 4), passes_of(draft, 2)])
    space.add_table("passes", "passes.parquet", passes, SERVED_PASS)
    space.add_table("samples", "samples.parquet", SAMPLES.table([]), SAMPLES)
    collected = space.publish()
    lineage = {"key": f"collect_benchmark/{lost}.parquet", "made_at": f"2026-12-0{lost + 1}T10:00:00"}
    collected = collected.model_copy(update={"lineage": lineage})
    difference = {"prompt_id": "a", **PLACE._asdict(), "position": 4, "plain_token": 5, "token": 6, "kind": kind}
    differences = DIFFERENCES.table([difference | {"margin": 0.001, "below_best": 0.001}])
    survivals = [
        {"prompt_id": row["prompt_id"], "variant": AS_CONFIGURED, "steps": 3, "prompt_ids": row["prompt_ids"]}
        | {"output_ids": row["output_ids"], "survived": [0] * (len(row["output_ids"]) - 1)}
        for row in draft
    ]
    return find(
        given,
        collected,
        [collected],
        Rows(contract=DIFFERENCES.name, table=differences),
        Rows(contract=SURVIVALS.name, table=SURVIVALS.table(survivals)),
        None,
        baseline() if given.baseline.artifact else None,
    )


def baseline() -> Shards:
    space = Workspace("collect_benchmark/before.parquet")
    space.add_table("served", "served.parquet", served(served_row("a", (3, 1, 0)), served_row("b", (2, 2))), SERVED)
    return space.publish()


def test_the_page_holds_every_table_and_needs_nothing_else(store: Path) -> None:
    given = recipe(baseline={"artifact": "before"})
    failures = {"sglang draft 3/1/4": EngineError("port <30000> is taken")}
    report = report_benchmark(store, given, findings_of(given, lost=1), failures, Console(width=200, record=True))
    page = report.page.read_text()
    assert "prefers-color-scheme: dark" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert page.count("<svg") == len(report.plots) == 4
    for title in ("Acceptance and speed", "Against the baseline", "Engines against the foreseen counts", "By dataset"):
        assert title in page
    assert "port &lt;30000&gt; is taken" in page
    assert "2.400" in page  # 1 + 7 accepted of 5 steps
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers)), "drawings do not share ids"


@pytest.mark.usefixtures("store")
def test_gates_close_on_what_the_recipe_says() -> None:
    lenient = recipe(parity={"fail": False}, lossless={"fail": False})
    assert findings_of(lenient).closed(lenient) == []
    strict = recipe()
    closed = findings_of(strict, kind="real").closed(strict)
    assert any("1 greedy answers with a drafter are not those without it" in reason for reason in closed)
    assert any("the first position is wrong" in reason for reason in closed), "nothing was foreseen to survive"


def test_history_has_one_line_per_benchmark(store: Path) -> None:
    given = recipe()
    for lost in (0, 1, 1):
        report = report_benchmark(store, given, findings_of(given, lost=lost), {}, Console(width=200, record=True))
    rows = read_table(store / "reports" / "page" / "history.parquet", HISTORY).to_pylist()
    assert [(row["key"], round(row["length"], 3)) for row in rows] == [
        ("collect_benchmark/0.parquet", 2.6),
        ("collect_benchmark/1.parquet", 2.4),
    ]
    assert "served_history" in report.plots
