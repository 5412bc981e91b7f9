"""Reconstruction against bare encoding of the same text: `python -m tests.benchmarks.reconstruction --format NAME`.

Wanted ratio: at least 0.7 in characters per second, with the written Parquet file. Rounds of the two alternate, and CPU
time counts beside wall time, so that other work on the machine does not decide the result. Peak memory is that of a
process which streams a number of shards, and of one that streams four times as many.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer

from schemas.answers import ANSWERS, SEQUENCES
from schemas.sections import AuditSpec, ReconstructionSpec
from tasks.artifacts.files import write_table
from tasks.formats.codec import TIKTOKEN_FILE, TOKENIZER_FILE
from tasks.formats.format import Fault, Said
from tasks.formats.registry import bind
from tasks.formats.tiktoken_model import PATTERN
from tasks.reconstruct.ahead import ahead
from tasks.reconstruct.assemble import Origin, assemble
from tasks.reconstruct.folder import stand_in
from tasks.reconstruct.rebuild import encode_readings
from tasks.reconstruct.row import Means
from tasks.validate.audit import Audit
from tasks.validate.figures import Known
from tests import tokenizers

WANTED = 0.7
PER_SHARD = 500
REASONING, CONTENT = 7200, 2400  # characters of an answer: about 2,500 ids, a short one of a reasoning model
_TOKENIZERS = {"kimi-k2.5": "kimi", "qwen3": "qwen-3", "deepseek-v3.1": "deepseek-v3.1", "glm-4.7": "glm-4.7-flash"}
_KIMI_END = {"<|im_end|>": 163586}
_ASKED = 40  # words of a prompt, drawn so that no two prompts are alike
_TEMPLATE = "ab" * 32


def main() -> None:
    """Print characters per second of both, their ratio, and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", default="kimi-k2.5", choices=_TOKENIZERS)
    parser.add_argument("--stream", action="store_true", help="only stream all rows once, and print the peak memory")
    options = parser.parse_args()
    if options.stream:
        print(json.dumps(stream(options.format, options.rows)))
        return
    compare(options.format, options.rows, options.rounds)
    for rows in (options.rows, 4 * options.rows):
        command = [sys.executable, "-m", "tests.benchmarks.reconstruction", "--stream", "--rows", str(rows)]
        command += ["--format", options.format]
        out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"peak memory with {rows} rows streamed: {out['peak_mib']:.0f} MiB")


def means_of(name: str) -> Means:
    """What the answers of a format are judged with."""
    codec = tokenizers.codec(_TOKENIZERS[name])
    return Means(bind(name, codec), codec, ReconstructionSpec())


def bare_encoding(name: str) -> Callable[[list[str]], object]:
    """The library's own batch call on two threads, with the published tokenizer as it is."""
    folder = tokenizers.folder(_TOKENIZERS[name])
    if (folder / TOKENIZER_FILE).is_file():
        encode: Any = Tokenizer.from_file(str(folder / TOKENIZER_FILE)).encode_batch_fast
        return lambda texts: [row.ids for row in encode(texts, add_special_tokens=False)]
    ranks = load_tiktoken_bpe(str(folder / TIKTOKEN_FILE))
    encoding = tiktoken.Encoding(name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=dict(_KIMI_END))
    return lambda texts: encoding.encode_ordinary_batch(texts, num_threads=2)


def answers_of(means: Means, rows: int) -> Iterator[pa.Table]:
    """Tables of answers as text, cut from the standard library's sources, with counts that fit."""
    pieces = text_pieces()
    words = sorted(set(next(pieces).split()))
    chance = random.Random(0)
    tail = stand_in(means.token_format, means.codec, True)
    opening = means.token_format.opening(tail)
    for first in range(0, rows, PER_SHARD):
        texts = [(next(pieces), next(pieces)) for _ in range(min(PER_SHARD, rows - first))]
        readings = [means.token_format.readings(Said(*pair, ended=True), opening) for pair in texts]
        asked = [" ".join(chance.choices(words, k=_ASKED)) for _ in texts]
        prompts = [ids + tail.tolist() for ids in means.codec.encode(asked)]
        ids = encode_readings([found[0] for found in readings if not isinstance(found, Fault)], means.codec)
        yield ANSWERS.table(
            dict.fromkeys(ANSWERS.arrow.names)
            | {
                "prompt_id": f"{first + number:032x}",
                "root_id": f"{first + number:032x}",
                "dataset": "sources",
                "request": json.dumps({"messages": [{"role": "user", "content": question}]}),
                "prompt_ids": prompt,
                "reasoning": pair[0],
                "content": pair[1],
                "finish_reason": "stop",
                "completion_tokens": len(row),
                "engine": "sglang",
            }
            for number, (pair, question, prompt, row) in enumerate(zip(texts, asked, prompts, ids, strict=True))
        )


def text_pieces() -> Iterator[str]:
    """Endless text: reasoning and content by turns."""
    folder = Path(sysconfig.get_path("stdlib"))
    while True:
        for path in sorted(folder.glob("*.py")):
            text = path.read_text(errors="ignore").replace("<", "(")  # no marker by accident
            lengths = iter([REASONING, CONTENT] * (len(text) // (REASONING + CONTENT)))
            begin = 0
            for length in lengths:
                yield text[begin : begin + length]
                begin += length


def compare(name: str, rows: int, rounds: int) -> None:
    """Alternate the two, and print the medians."""
    means = means_of(name)
    tables = list(answers_of(means, rows))
    texts = [table["reasoning"].to_pylist() + table["content"].to_pylist() for table in tables]
    characters = sum(len(text) for shard in texts for text in shard)

    library = bare_encoding(name)

    def bare() -> None:
        for shard in texts:
            library(shard)

    def reconstruction(audit: Audit | None = None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for found in ahead(lambda table: assemble(table, means, {}, Origin(name, _TEMPLATE, "{}")), tables):
                assert found.quarantine.num_rows == 0, found.reasons()
                write_table(Path(folder) / "sequences.parquet", found.sequences, SEQUENCES)
                if audit:
                    audited = audit.take(found.sequences)
                    assert audited.sequences.num_rows == found.sequences.num_rows

    def audited() -> None:
        known = Known(means.codec.vocab_size, 10**6, _TEMPLATE, means.codec, means.token_format)
        reconstruction(Audit(known, AuditSpec(), means.spec))

    kinds = {"bare encoding": bare, "reconstruction": reconstruction, "reconstruction and audit": audited}
    bare()  # warm up
    wall: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, work in kinds.items():
            seconds, cpu_seconds = timed(work)
            wall[kind].append(characters / seconds)
            cpu[kind].append(characters / cpu_seconds)
    print(f"{name}: {rows} rows, {characters} characters, {len(tables)} shards, {rounds} rounds, medians")
    for unit, rates in (("wall second", wall), ("CPU second", cpu)):
        medians = {kind: statistics.median(found) for kind, found in rates.items()}
        for kind, median in medians.items():
            ratio = median / medians["bare encoding"]
            print(f"characters per {unit}: {kind} {median:.3g}, ratio {ratio:.3f} (wanted: at least {WANTED})")


def stream(name: str, rows: int) -> dict[str, float]:
    """Make and reconstruct the rows shard by shard, as a run does."""
    means = means_of(name)
    for _ in ahead(lambda table: assemble(table, means, {}, Origin(name, _TEMPLATE, "{}")), answers_of(means, rows)):
        pass
    return {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
