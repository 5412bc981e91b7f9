"""Datasets of the Hub over HTTP: the pinned commit's rows, no more bytes than are read, errors that name the cause."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.prompts.given import assistant, user
from tests.prompts.streaming import streamed
from tests.servers.hub import Hub, hub

pytestmark = pytest.mark.slow

COMMIT = "08e109b4a59eaeebf80e4675cd125d42e7ac99a4"
REPO = "open-r1/Mixture-of-Thoughts"
ROWS = 300
CARD = """\
---
configs:
- config_name: all
  data_files:
  - split: train
    path: all/*.parquet
- config_name: math
  data_files:
  - split: train
    path: math/*.parquet
- config_name: long
  data_files:
  - split: train
    path: long/*.parquet
---
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configurations of Parquet files, a JSON array, and packed JSON lines."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "README.md").write_text(CARD)
    for name, files, rows, answer in (("all", 2, ROWS, 5), ("math", 1, 30, 5), ("long", 1, 6000, 1500)):
        (folder / name).mkdir()
        for file in range(files):
            found = [[user(f"{name} {file} {n}"), assistant(f"{n:05d}" * answer)] for n in range(rows)]
            table = pa.table({"messages": found, "num_tokens": [9] * rows, "source": ["s"] * rows})
            pq.write_table(table, folder / name / f"{file}.parquet", row_group_size=250, compression="none")
    said = [{"id": f"abc_{n}", "conversations": [{"from": "human", "value": f"array {n}"}]} for n in range(20)]
    (folder / "sharegpt.json").write_text(json.dumps(said, indent=1))
    lines = [json.dumps({"id": f"l{n}", "messages": [user(f"line {n}")]}) for n in range(20)]
    (folder / "chat.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


@pytest.fixture
def served(repository: Path) -> Iterator[Hub]:
    with hub(REPO, COMMIT, repository) as server:
        yield server


def asked(found: dict[str, list[list[dict[str, str]]]]) -> list[str]:
    return [messages[-1]["content"] for messages in found["messages"]]


def test_all_rows_of_the_usual_configuration_at_the_commit(served: Hub, tmp_path: Path) -> None:
    found = streamed(served, tmp_path, source=f"hub:{REPO}", revision=COMMIT, adapter="mixture_of_thoughts")
    assert sorted(asked(found)) == sorted(f"all {file} {n}" for file in range(2) for n in range(ROWS))
    assert found["facts"]["quarantined"] == {}
    files = [path for _, path in served.requests if "/resolve/" in path or "/tree/" in path]
    assert files
    assert all(f"/{COMMIT}" in path for path in files)


def test_a_limit_fetches_a_part_of_a_long_file(served: Hub, tmp_path: Path, repository: Path) -> None:
    dataset = {"source": f"hub:{REPO}", "revision": COMMIT, "adapter": "mixture_of_thoughts", "config": "long"}
    found, again = (streamed(served, tmp_path / name, **dataset, limit=30) for name in ("one", "two"))
    assert asked(found) == asked(again)
    assert len(set(asked(found))) == 30
    whole = (repository / "long" / "0.parquet").stat().st_size
    assert 0 < served.bytes_sent / 2 < 0.7 * whole


def test_another_configuration_can_be_named(served: Hub, tmp_path: Path) -> None:
    dataset = {"source": f"hub:{REPO}", "revision": COMMIT, "adapter": "mixture_of_thoughts", "config": "math"}
    found = streamed(served, tmp_path, **dataset)
    assert len(asked(found)) == 30
    assert {text.split()[0] for text in asked(found)} == {"math"}


@pytest.mark.parametrize(
    ("file", "adapter", "first"), [("sharegpt.json", "sharegpt", "array"), ("chat.jsonl.gz", "jsonl", "line")]
)
def test_one_file_of_a_repository(file: str, adapter: str, first: str, served: Hub, tmp_path: Path) -> None:
    found = streamed(served, tmp_path, source=f"hub:{REPO}/{file}", revision=COMMIT, adapter=adapter)
    assert sorted(asked(found)) == sorted(f"{first} {n}" for n in range(20))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"revision": "0" * 40}, "at 000000000000"),
        ({"source": "hub:nobody/nothing"}, "nobody/nothing at 08e109b4a59e"),
        ({"config": "poetry"}, "configuration poetry"),
        ({"source": f"hub:{REPO}/none.jsonl"}, "none.jsonl"),
    ],
)
def test_what_the_hub_does_not_have_is_named(change: dict[str, str], told: str, served: Hub, tmp_path: Path) -> None:
    dataset = {"source": f"hub:{REPO}", "revision": COMMIT, "adapter": "mixture_of_thoughts"} | change
    error = streamed(served, tmp_path, **dataset)["error"]
    assert error.startswith("dataset 'chat'")
    assert "the Hub dataset cannot be streamed" in error
    assert told in error
