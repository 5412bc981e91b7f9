"""A Hub dataset is streamed at a pinned commit; here the same code streams a folder, so that no network is needed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import PromptSourceError
from tasks.artifacts.keys import canonical
from tasks.prompts.gather import gather
from tasks.prompts.hub import HubSource, open_hub
from tasks.prompts.locate import locate_sources, open_source
from tasks.prompts.records import SourceDamaged
from tests.prompts.given import assistant, dataset, user

COMMIT = "08e109b4a59eaeebf80e4675cd125d42e7ac99a4"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 400 rows as they are on the Hub; every tenth row asks what the row before asked."""
    for file in range(3):
        texts = [f"question {file} {number - (number % 10 == 9)}" for number in range(400)]
        table = {"messages": [[user(text), assistant()] for text in texts], "num_tokens": [9] * 400}
        pq.write_table(pa.table(table), tmp_path / f"train-{file}.parquet")
    return tmp_path


def source(folder: object, **more: Any) -> HubSource:
    return HubSource(**({"repo": str(folder), "file": "", "revision": COMMIT, "config": "", "split": "train"} | more))


def hub(**more: Any) -> Any:
    return dataset(**({"source": "hub:open-r1/Mixture-of-Thoughts", "adapter": "mixture_of_thoughts"} | more))


def located(**more: Any) -> HubSource:
    (found,) = locate_sources([hub(**more)])
    assert isinstance(found, HubSource)
    return found


@pytest.mark.parametrize("revision", ["", "main", "08e109b", COMMIT.upper()])
def test_a_hub_dataset_without_its_commit_is_refused(revision: str):
    with pytest.raises(PromptSourceError, match=r"dataset 'chat' .*give the commit, 40 hex digits"):
        located(revision=revision)


@pytest.mark.parametrize("name", ["hub:", "hub:squad", "hub:/x", "hub:owner/"])
def test_an_incomplete_name_is_refused(name: str):
    with pytest.raises(PromptSourceError, match=r"must be hub:OWNER/NAME"):
        located(source=name, revision=COMMIT)


@pytest.mark.parametrize(
    ("adapter", "config", "split"),
    [
        ("opencodeinstruct", "train", "train"),
        ("mixture_of_thoughts", "all", "train"),
        ("openthoughts_114k", "default", "train"),
        ("ultrachat", "", "train_sft"),
        ("swe_smith", "", "tool"),
        ("swe_agent", "", "train"),
    ],
)
def test_configuration_and_split_are_the_datasets_usual_ones(adapter: str, config: str, split: str):
    found = located(adapter=adapter, revision=COMMIT)
    assert (found.config, found.split) == (config, split)
    named = located(adapter=adapter, revision=COMMIT, config="math", hub_split="test")
    assert (named.config, named.split) == ("math", "test")


def test_a_single_file_of_a_hub_dataset_can_be_named():
    found = located(source="hub:anon/ShareGPT/data/one.json", revision=COMMIT)
    assert (found.repo, found.file, found.config, found.split) == ("anon/ShareGPT", "data/one.json", "", "train")


def test_all_that_says_the_rows_counts_in_a_cache_key():
    base = source("a/b")
    changes = [{"repo": "a/c"}, {"revision": "0" * 40}, {"config": "x"}, {"split": "y"}, {"file": "z"}]
    keys = {canonical([base.model_copy(update=change)]) for change in ({}, *changes)}
    assert len(keys) == 1 + len(changes)


def test_rows_are_streamed_with_the_wanted_columns(folder: Path):
    opened = open_hub(source(folder), {"messages", "id"}, shuffled=False)
    first = next(opened.rows)
    assert opened.columns == ("messages", "num_tokens")
    assert (first.place, first.columnar) == ("row 1", True)
    assert first.row == {"messages": [user("question 0 0"), assistant()]} == json.loads(first.raw)
    assert sum(1 for _ in opened.rows) == 1199


def test_one_file_alone_is_streamed(folder: Path):
    assert sum(1 for _ in open_hub(source(folder, file="train-1.parquet"), {"messages"}, shuffled=False).rows) == 400


def test_a_limit_takes_the_same_distinct_rows_every_time_and_reads_no_more(folder: Path, tmp_path_factory: Any):
    path = tmp_path_factory.mktemp("bench") / "bench.jsonl"
    path.write_bytes(json.dumps({"messages": [user("How many legs has a spider?")]}).encode())
    specs = [hub(limit=50), dataset(path, name="bench", split="benchmark")]
    sources = [source(folder), locate_sources(specs[1:])[0]]
    found, again = gather(specs, sources), gather(specs, sources)
    assert list(found.train) == list(again.train)
    assert (len(found.train), len({prompt.messages for prompt in found.train})) == (50, 50)
    facts = found.facts()
    assert facts["left_by_limit"] == {}
    assert found.rows_read["chat"] == 50 + len(found.rejected) < 100
    assert len({json.loads(prompt.messages)[0]["content"].split()[1] for prompt in found.train}) > 1


def test_without_a_limit_all_rows_are_read(folder: Path):
    assert sum(1 for _ in open_source(hub(), source(folder), {"messages"}).rows) == 1200


@pytest.mark.parametrize("change", [{"config": "nope"}, {"split": "nope"}, {"repo": "no/such"}, {"file": "nope.json"}])
def test_what_cannot_be_streamed_is_an_error_that_names_it(folder: Path, change: dict[str, str]):
    with pytest.raises(PromptSourceError, match=rf"'chat' .*the Hub dataset cannot be streamed \(.* at {COMMIT[:12]}"):
        list(open_source(hub(), source(folder, **change), {"messages"}).rows)


def test_a_file_that_is_damaged_behind_its_first_rows_is_an_error(folder: Path):
    whole = (folder / "train-2.parquet").read_bytes()
    (folder / "train-2.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceDamaged, match="cannot be streamed"):
        list(open_hub(source(folder), {"messages"}, shuffled=False).rows)
