"""The real engines on this CPU, for tests that start them: installed when the first test asks, and how they start.

SGLang has no kernels for CPUs on PyPI; it runs here with the stand-ins in sglang_cpu, which are ours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from schemas.serving import LaunchedEngine, LaunchSpec
from tasks.engines.environments import engines_root
from tasks.engines.install import install

_SGLANG_CPU = Path(__file__).with_name("sglang_cpu")
CONTEXT = 2048

_FLAGS: dict[str, list[str]] = {
    "llamacpp": [],
    "vllm": ["--enforce-eager", "--max-model-len", str(CONTEXT)],
    "sglang": [
        *("--device", "cpu", "--attention-backend", "torch_native", "--context-length", str(CONTEXT)),
        # else it would size its cache by all of the machine's memory
        *("--max-total-tokens", "16384", "--max-running-requests", "32", "--skip-server-warmup"),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
    ],
}


def cpu_launch(engine: LaunchedEngine, *flags: str, **fields: Any) -> LaunchSpec:
    """How an engine is started on a CPU, with one thread; it is installed if it is not there.

    Raises:
        EngineError: it cannot be installed.
    """
    install(engine)
    environment = {"OMP_NUM_THREADS": "1"} | _environment(engine)
    dtype = "auto" if engine == "llamacpp" else "float32"  # bf16 is ten times slower where a CPU has no such numbers
    spec = LaunchSpec(
        engine=engine, dtype=dtype, flags=[*_FLAGS[engine], *flags], environment=environment, start_seconds=600
    )
    return spec.model_copy(update=fields)


def _environment(engine: str) -> dict[str, str]:
    if engine == "vllm":
        openmp = engines_root() / "vllm" / "lib" / "libiomp5.so"
        return {
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            **({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {}),
        }
    if engine == "sglang":
        return {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": os.fspath(_SGLANG_CPU)}
    return {}
