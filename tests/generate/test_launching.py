"""A served engine that the generation task starts itself: asked, watched and stopped; the fake server in its place."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import RunStopped, ServerEnded
from schemas.generation import GenerationSpec
from schemas.prompts import PROMPTS
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.keys import canonical
from tasks.generate.serve.stopping import request_stop
from tasks.generate.served import generate_served
from tests.engines.installing import install_in_place_of
from tests.engines.processes import is_alive, wait_until_gone
from tests.generate.serving import vocabulary
from tests.rows import prompt, prompts, run_body, stored

LIMITS = {"short": {"concurrency": 8, "max_tokens": 64}, "long": {"concurrency": 4, "max_tokens": 128}}
ROWS = [prompt(f"What is a {thing}?") for thing in ("comet", "river", "clock")]


@pytest.fixture(autouse=True)
def _engines(tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = vocabulary(tmp_path / "words.json", tiny_target)
    for engine in ("vllm", "sglang"):
        place = ("-m", "tests.engines.fake_engine", "--vocabulary", str(words))
        install_in_place_of(engine, tmp_path / "engines", *place)
    monkeypatch.setenv("EYAS_ENGINES", str(tmp_path / "engines"))


def spec(engine: str, *flags: str, **fields: Any) -> GenerationSpec:
    launch = {"engine": engine, "start_seconds": 60, "flags": flags} | fields
    return GenerationSpec.model_validate({"engine": engine, "launch": launch, "serving": LIMITS})


def served(target: Shards, target_spec: TargetSpec, generation: GenerationSpec, name: str = "one") -> Shards:
    given = stored("gather_prompts", "train", PROMPTS, [prompts(*sorted(ROWS, key=lambda row: row["prompt_id"]))])
    partitions = {"chat": "short"}
    return run_body(
        generate_served, target, given, generation, partitions, "quarantine", 0, target_spec, "test", name=name
    )


def process_of(store: Path, engine: str) -> int | None:
    """The process id that a started server has said, if it has."""
    said = "".join(path.read_text() for path in (store / "logs").glob(f"{engine}-*.log"))
    found = re.search(r"process (\d+)", said)
    return int(found[1]) if found else None


def await_process(store: Path, engine: str) -> int:
    while (pid := process_of(store, engine)) is None:
        time.sleep(0.05)
    return pid


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_is_started_for_the_answers_and_stopped_after(
    engine: str, store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    answers = served(tiny_artifact, tiny_spec, spec(engine))
    rows = [row for table in answers.tables("answers") for row in table.to_pylist()]
    assert {row["prompt_id"] for row in rows} == {row["prompt_id"] for row in ROWS}
    assert not is_alive(await_process(store, engine))


def test_paid_answers_are_found_again_whatever_the_server_was_started_with_but_not_of_another_precision(
    store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    def attempts(name: str, *flags: str, **fields: Any) -> int:
        return served(tiny_artifact, tiny_spec, spec("vllm", *flags, **fields), name).table("ledger").num_rows

    assert attempts("one") == 3
    assert attempts("two", "--max-num-seqs", "8") == 3
    assert attempts("three", dtype="bfloat16") == 6


def test_a_server_that_dies_in_the_middle_ends_the_run_with_its_last_lines(
    store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    slow = spec("vllm", "--die-when-asked", "--options", '{"latency": 60}')
    with pytest.raises(ServerEnded, match=r"3 are left(.|\n)*ended with exit code 9(.|\n)*out of memory"):
        served(tiny_artifact, tiny_spec, slow)


def test_a_stop_while_the_server_starts_ends_the_run(store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    def stop() -> None:
        await_process(store, "vllm")
        assert request_stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(RunStopped, match="while vllm started"):
        served(tiny_artifact, tiny_spec, spec("vllm", "--start-seconds", "600"))
    stopper.join()
    wait_until_gone(await_process(store, "vllm"))


def test_flags_are_no_part_of_the_key_and_what_changes_numbers_is() -> None:
    plain = spec("vllm")
    assert canonical(plain) == canonical(spec("vllm", "--max-num-seqs", "8", port=9000))
    assert canonical(plain) != canonical(spec("vllm", quantization="fp8"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"engine": "vllm", "launch": {"engine": "sglang"}}, "engine is vllm, but launch.engine is sglang"),
        ({"launch": {"engine": "vllm"}}, "engine is transformers, but launch.engine is vllm"),
        (
            {
                "engine": "vllm",
                "launch": {"engine": "vllm"},
                "serving": {"endpoints": [{"url": "http://127.0.0.1:1"}]},
            },
            "are for servers that run",
        ),
    ],
)
def test_sections_that_contradict_themselves_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GenerationSpec.model_validate(fields)
