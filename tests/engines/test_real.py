"""Real vLLM and real SGLang on this CPU with SmolLM2: started by the generation task, their ids are the ids."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.generation import GenerationSpec
from schemas.prompts import PROMPTS
from schemas.sections import ReconstructionSpec, TargetSpec
from schemas.serving import LaunchedEngine
from tasks.artifacts.artifact import Shards
from tasks.generate.served import generate_served
from tasks.reconstruct.task import reconstruct_sequences
from tasks.target.model import Target, load_target
from tests.engines.installing import ROOT
from tests.engines.processes import descendants, wait_until_gone
from tests.engines.real import cpu_launch
from tests.rows import prompt, prompts, run_body, stored

pytestmark = pytest.mark.slow

SUBJECTS = ["rivers", "bread", "the moon", "prime numbers", "violins", "tea", "maps", "bees", "glass", "sleep"]
QUESTIONS = ["Explain {} to a child.", "Write a Python function about {}.", "Give three facts about {}."]
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def real(smollm2: Shards, smollm2_spec: TargetSpec) -> Target:
    return load_target(smollm2, smollm2_spec)


def rows() -> list[dict[str, Any]]:
    """Thirty questions, and a conversation of two turns."""
    first = prompt("Name a colour.")
    single = [prompt(question.format(subject)) for subject in SUBJECTS for question in QUESTIONS]
    talk = [first, prompt("And another one?", parent=first)]
    return sorted([*single, *talk], key=lambda row: (row["root_id"], row["turn"], row["prompt_id"]))


def is_greedy(target: Target, prompt_ids: list[int], answer: list[int]) -> bool:
    """Whether each id is the target's first choice after all before it, as transformers computes it."""
    ids = torch.tensor([prompt_ids + answer])
    states = target.hidden(ids)[0, len(prompt_ids) - 1 : -1]
    return target.lm_head(states).argmax(-1).tolist() == answer


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_answers_of_a_real_engine_are_the_targets_own_greedy_ids(
    engine: LaunchedEngine, store: Path, smollm2: Shards, smollm2_spec: TargetSpec, real: Target
) -> None:
    limits = {"concurrency": 16, "max_tokens": MAX_TOKENS}
    spec = GenerationSpec.model_validate(
        {
            "engine": engine,
            "temperature": 0,
            "launch": cpu_launch(engine).model_dump(),
            "serving": {"short": limits, "long": limits},
        }
    )
    given = stored("gather_prompts", "train", PROMPTS, [prompts(*rows())])
    answers = run_body(generate_served, smollm2, given, spec, {}, "quarantine", 0, smollm2_spec, "test")
    sequences = run_body(reconstruct_sequences, smollm2, answers, ReconstructionSpec(), smollm2_spec)

    exact = [row for table in sequences.tables("sequences") for row in table.to_pylist()]
    assert sequences.facts["quarantined"] == {}
    assert len(exact) == len(rows())
    assert {row["provenance"] for row in exact} == {"returned"}
    assert {row["delta_class"] for row in exact} == {"exact"}
    assert all(is_greedy(real, row["prompt_ids"], row["completion_ids"]) for row in exact)
    ended = [row["completion_ids"][-1] in smollm2.facts["eos_ids"] for row in exact]
    assert all(end or len(row["completion_ids"]) == MAX_TOKENS for end, row in zip(ended, exact, strict=True))
    assert any(ended)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a keeper of all that descends from it")
def test_no_process_of_a_real_engine_outlives_a_parent_that_is_killed(
    engine: LaunchedEngine, smollm2_folder: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, tasks.environment; from pathlib import Path; from schemas.serving import LaunchSpec\n"
        "from tasks.engines.launch import launched\n"
        "with launched(LaunchSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]), 'smollm2'): pass\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "EYAS_STORE": str(tmp_path / "store")}
    environment.pop("PREFECT_RESULTS_LOCAL_STORAGE_PATH", None)
    spec = cpu_launch(engine).model_dump_json()
    with subprocess.Popen([sys.executable, "-c", code, spec, str(smollm2_folder)], env=environment) as parent:
        while len(family := descendants(parent.pid)) < 3:  # the keeper, the engine, and what this has started
            assert parent.poll() is None
            time.sleep(0.2)
        parent.kill()
    wait_until_gone(*family)
