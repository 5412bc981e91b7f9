"""How fast stored states are read, and how many bytes they take: `python -m tests.benchmarks.state_reading`.

Sequences come in a random order, as training reads them, from files that are in the page cache. Beside it, per byte of
states: a copy out of a bare memory map in the same order, and reading the files from end to end.
"""

import tasks.environment  # noqa: F401 (before torch)

# isort: split
import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings

from schemas.corpus import HIDDEN_STATES
from schemas.extraction import ExtractionSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import open_store
from tasks.artifacts.workspace import Workspace
from tasks.states.layout import bytes_of, state_row
from tasks.states.source import Captured
from tasks.train.loader import SequenceStore

PROMPT, ANSWER, VOCAB = 400, 600, 49152
ROUNDS = 3
ID_BYTES = 4
MIB = 2**20


def main() -> None:
    """Print bytes per token and rates for both kinds of storage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for storage in ("bfloat16", "float8"):
        spec = ExtractionSpec.model_validate({"storage": storage})
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "store" / "results"
            with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: results}):
                open_store()
                measure(shard(options.sequences, options.hidden, spec), options.hidden, options.sequences, spec)


def shard(count: int, hidden: int, spec: ExtractionSpec) -> Shards:
    """Random states, written as extraction writes them."""
    generator = torch.Generator().manual_seed(0)
    out = Workspace("extract_states/random.parquet")
    with out.stream_table("hidden_states", "states.parquet", HIDDEN_STATES, compression="none") as write:
        for number in range(count):
            row = {
                "sequence_id": f"{number:032x}",
                "split": "train",
                "token_ids": torch.randint(VOCAB, (PROMPT + ANSWER,), generator=generator).tolist(),
                "prompt_length": PROMPT,
            }
            aux = torch.randn(PROMPT + ANSWER, 3 * hidden, generator=generator).bfloat16()
            last = torch.randn(ANSWER + 1, hidden, generator=generator).bfloat16()
            write(HIDDEN_STATES.table([state_row(row, Captured(number, aux, last, None), hidden, spec)]))
    return out.publish({"aux_layers": [1, 2, 3]})


def measure(states: Shards, hidden: int, count: int, spec: ExtractionSpec) -> None:
    """Print the figures of one shard."""
    path, size = states.shards[0].locate(), states.shards[0].bytes
    least = count * (bytes_of(PROMPT + ANSWER, PROMPT, hidden, spec) + ID_BYTES * (PROMPT + ANSWER))
    tokens = count * (PROMPT + ANSWER)
    store = SequenceStore([states], "train")
    order = np.random.default_rng(0).permutation(count).tolist()
    mapped = np.memmap(path, np.uint8, "r")
    each = size // count

    def loader() -> None:
        for index in order:
            store.read(index)

    def memory_map() -> None:
        for index in order:
            np.array(mapped[index * each : (index + 1) * each])

    rates = {name: size / MIB / best_of(work) for name, work in (
        ("loader", loader), ("memory map, copied", memory_map), ("whole file", path.read_bytes)
    )}  # fmt: skip
    print(
        f"{spec.storage}: {size / tokens:,.0f} bytes per token on disk, {size / least:.4f} of the states and ids alone"
    )
    for name, rate in rates.items():
        print(f"  {name:20} {rate:8,.0f} MiB/s  the loader has {rates['loader'] / rate:.2f} of it")


def best_of(work: Callable[[], object]) -> float:
    """Seconds of the fastest round: other work on the machine only ever adds."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


if __name__ == "__main__":
    main()
