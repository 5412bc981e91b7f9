"""A launched engine is told to give the states of the recipe's layers, beside what the recipe itself tells it."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.extraction import ExtractionSpec
from tasks.states.launching import prepared_launch

LLAMA = {"model_type": "llama", "num_layers": 32}
KIMI = {"model_type": "kimi_k25", "num_layers": 61}
OWN = ["--tensor-parallel-size", "8"]


def spec(engine: str, layers: list[int]) -> ExtractionSpec:
    launch = {"engine": engine, "flags": OWN, "environment": {"PYTHONPATH": "/own"}}
    return ExtractionSpec.model_validate({"engine": engine, "launch": launch, "teacher_top_k": 8, "aux_layers": layers})


def test_vllm_captures_the_three_layers_and_the_last_one() -> None:
    found = prepared_launch(spec("vllm", []), LLAMA, Path("/exchange"))
    assert found.flags[:2] == OWN
    given = {flag: json.loads(value) for flag, value in zip(found.flags[2::2], found.flags[3::2], strict=True)}
    ids = given["--speculative-config"]["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    assert ids == [2, 16, 29, 32]
    assert given["--kv-transfer-config"]["kv_connector_extra_config"] == {"shared_storage_path": "/exchange"}
    ours, own = found.environment["PYTHONPATH"].split(":")
    assert own == "/own"
    assert [file.name for file in Path(ours).glob("*.py")] == ["eyas_hidden_states.py"], "nothing else of ours"


def test_sglang_is_given_layers_by_the_rule_of_the_model_unless_they_are_the_default() -> None:
    flag = "--return-aux-hidden-state-layer-ids"
    assert flag not in prepared_launch(spec("sglang", []), LLAMA, Path()).flags
    for facts, layers, wanted in (
        (LLAMA, [2, 15, 28], ["2", "15", "28"]),
        (KIMI, [2, 30, 58], ["3", "31", "59"]),
        (KIMI, [1, 30, 57], ["1", "30", "57"]),
    ):
        flags = prepared_launch(spec("sglang", layers), facts, Path()).flags
        assert flags[flags.index(flag) + 1 :] == wanted
        assert flags[:2] == OWN
        assert "--disable-radix-cache" in flags
