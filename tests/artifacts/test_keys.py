"""Cache keys: equal inputs give equal keys in every process, different inputs give different ones."""

from __future__ import annotations

import datetime
import enum
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from schemas.generation import GenerationSpec
from schemas.sections import ADDED, BenchmarkSpec, Section, TrainingSpec
from tasks.artifacts.artifact import Rows, Shard, Shards, SourceFile
from tasks.artifacts.keys import ContentKey, canonical
from tests.artifacts.pipeline import NUMBERS

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
names = st.one_of(st.text(), st.sampled_from(["$artifact", "$model", "$float", "$$float", "digest", "fields"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)


def shuffled(value: Any) -> Any:
    """The same value with every dictionary in reverse order."""
    if isinstance(value, dict):
        return {key: shuffled(item) for key, item in reversed(value.items())}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


def identity(value: Any) -> Any:
    """What makes a value: its type and content, dictionaries without their order."""
    if isinstance(value, dict):
        return "dict", frozenset((key, identity(item)) for key, item in value.items())
    if isinstance(value, list):
        return "list", tuple(identity(item) for item in value)
    return type(value).__name__, repr(value)


@given(values)
def test_the_order_of_dictionary_keys_does_not_count(value: Any) -> None:
    assert canonical(value) == canonical(shuffled(value))


@given(values, values)
def test_different_values_have_different_forms(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (identity(one) == identity(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        ("1", 1),
        (None, "null"),
        (0.0, -0.0),
        (math.inf, {"$float": "inf"}),
        (GenerationSpec(), {"$model": "GenerationSpec", "fields": GenerationSpec().model_dump()}),
        ([1, [2]], [[1], 2]),
        ("é", "e\u0301"),
    ],
)
def test_look_alikes_have_different_forms(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


@given(values, st.text(min_size=1), st.text(min_size=1))
def test_task_name_and_version_count(value: Any, name: str, version: str) -> None:
    inputs = {"value": value}
    assert ContentKey("1").key_for("task", inputs) != ContentKey("1" + version).key_for("task", inputs)
    assert ContentKey("1").key_for("task", inputs) != ContentKey("1").key_for("task" + name, inputs)


@given(values, values)
def test_excluded_parameters_do_not_count(one: Any, other: Any) -> None:
    key = ContentKey("1", exclude=["threads"])
    assert key.key_for("task", {"x": 1, "threads": one}) == key.key_for("task", {"x": 1, "threads": other})


def test_a_key_is_the_name_of_a_parquet_file() -> None:
    task, _, name = ContentKey("1").key_for("task", {"x": 1}).partition("/")
    assert task == "task"
    assert len(Path(name).stem) == 32
    assert name.endswith(".parquet")


SAMPLE = {"b": [1, 2.5, None, "ünï"], "a": {"z": True, "y": -0.0, "x": 1e300}, "spec": GenerationSpec(max_tokens=7)}


def test_keys_are_the_same_in_every_process() -> None:
    code = (
        "from tests.artifacts.test_keys import SAMPLE; from tasks.artifacts.keys import ContentKey;"
        "print(ContentKey('1').key_for('task', SAMPLE))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ContentKey("1").key_for("task", SAMPLE)


def shard(path: str, sha256: str = "a" * 64, rows: int = 3) -> Shard:
    return Shard(part="numbers", contract=NUMBERS.name, path=path, sha256=sha256, rows=rows, bytes=10)


def test_an_artifact_counts_by_its_content_alone() -> None:
    here = Shards(shards=(shard("data/count/1/n.parquet"),), measures={"seconds": 1.0}, lineage={"host": "a"})
    there = Shards(shards=(shard("data/count/2/n.parquet"),), measures={"seconds": 2.0}, lineage={"host": "b"})
    assert canonical(here) == canonical(there)


def test_shards_facts_names_and_order_are_content() -> None:
    one, two = shard("data/count/1/a.parquet"), shard("data/count/1/b.parquet", sha256="b" * 64)
    base = Shards(shards=(one, two))
    for other in (
        Shards(shards=(one,)),
        Shards(shards=(two, one)),
        Shards(shards=(one, two), facts={"x": 1}),
        Shards(shards=(one, shard("data/count/1/c.parquet", sha256="b" * 64))),
        Shards(shards=(one, shard("data/count/1/b.parquet", sha256="c" * 64))),
    ):
        assert other.digest() != base.digest()


def test_rows_count_by_contract_and_values() -> None:
    def rows(*values: int) -> Rows:
        return Rows(contract=NUMBERS.name, table=NUMBERS.table([{"value": value} for value in values]))

    assert rows(1, 2).digest() == rows(1, 2).digest()
    assert rows(1, 2).digest() != rows(2, 1).digest()
    table = rows(1, 2, 3).table
    assert Rows(contract=NUMBERS.name, table=table.slice(1)).digest() == rows(2, 3).digest()


def test_a_source_file_counts_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("same")
    (tmp_path / "b").write_text("same")
    (tmp_path / "c").write_text("other")
    a, b, c = (SourceFile.of(tmp_path / name) for name in "abc")
    assert canonical(a) == canonical(b)
    assert canonical(a) != canonical(c)


def test_artifacts_inside_models_and_lists_count_by_content(tmp_path: Path) -> None:
    class Bundle(BaseModel):
        files: list[SourceFile]

    (tmp_path / "a").write_text("same")
    (tmp_path / "b").write_text("same")
    one, other = (Bundle(files=[SourceFile.of(tmp_path / name)]) for name in "ab")
    assert canonical(one) == canonical(other)


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize("value", [Colour.RED, datetime.date(2026, 1, 2), (1, 2), math.nan])
def test_plain_values_of_python_have_a_form(value: Any) -> None:
    json.loads(canonical(value))


class WithSet(BaseModel):
    names: set[str]


@pytest.mark.parametrize("value", [Path("x"), {1, 2}, object(), b"bytes", {1: "a"}, WithSet(names={"a"}), [Path("x")]])
def test_values_without_content_identity_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cache key"):
        canonical(value)


def test_fields_that_only_cut_the_work_are_no_part_of_the_key() -> None:
    plain = canonical(TrainingSpec())
    assert canonical(TrainingSpec(checkpoint_every=7)) == plain
    assert canonical(TrainingSpec(epochs=10.0)) == canonical(TrainingSpec(epochs=10)) == plain
    assert canonical(TrainingSpec(evaluate_every=7)) != plain
    assert canonical(BenchmarkSpec(bootstrap=100, baselines=[], shard_prompts=1)) == canonical(BenchmarkSpec())
    assert canonical(BenchmarkSpec(chain=4)) != canonical(BenchmarkSpec())


class Before(Section):
    size: int = 3


def test_a_field_that_came_later_counts_only_when_it_is_set() -> None:
    class Later(Section):
        size: int = 3
        parent: Before = Field(default=Before(), json_schema_extra=ADDED)

    def form(value: BaseModel) -> object:
        return json.loads(canonical(value))["fields"]

    assert form(Later()) == form(Before()) == form(Later(parent=Before(size=3)))
    assert form(Later(parent=Before(size=4))) == {"size": 3, "parent": json.loads(canonical(Before(size=4)))}
