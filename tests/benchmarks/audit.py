"""How fast the audit is, and what memory it takes.

    python -m tests.benchmarks.audit [--rows 200000]

Made-up sequences of a Kimi target with its real tokenizer, in shards as a run stores them; making them is not timed.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Iterator

import pyarrow as pa

from schemas.answers import SEQUENCES
from schemas.ragged import Ragged
from schemas.sections import AuditSpec, ReconstructionSpec
from tasks.formats.codec import Codec
from tasks.formats.registry import bind
from tasks.overlap import Asked, BenchmarkIndex
from tasks.validate.audit import Audit
from tasks.validate.figures import Known
from tests.rows import TEMPLATE, prompt_id, request, sequence
from tests.tokenizers import codec

SHARD = 512
WORDS = [f"{a}{b}" for a in ("al", "be", "cor", "dun", "es", "fi", "gor", "hal") for b in "aeiouy" for _ in range(4)]


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.audit")
    options.add_argument("--rows", type=int, default=200_000)
    given = options.parse_args()
    tokenizer = codec("kimi")
    known = Known(
        tokenizer.vocab_size,
        262144,
        TEMPLATE,
        tokenizer,
        bind("kimi-k2.5", tokenizer),
        BenchmarkIndex([Asked("bench 1", prompt_id(1), ["What is the capital of the country of Norway?"])]),
    )
    audit = Audit(known, AuditSpec(max_quarantined_share=1), ReconstructionSpec())
    seconds, ids, before = 0.0, 0, _peak()
    for table in shards(tokenizer, given.rows):
        started = time.process_time()
        audit.take(table)
        seconds += time.process_time() - started
        ids += len(Ragged.of(table["completion_ids"]).values)
    found = audit.findings()
    print({name: count for name, count in audit.tally.failed.items() if count})
    print(f"{found.facts['rows_in']} rows, {ids / 1e6:.1f} M answer ids, {seconds:.1f} s of one core")
    print(f"{given.rows / seconds:,.0f} rows/s; peak {_peak()} MB, of which {before} MB before the first shard")


def shards(tokenizer: Codec, rows: int) -> Iterator[pa.Table]:
    """Rows whose answers are drawn from a few hundred texts, and whose questions are all different."""
    draw = random.Random(0)
    think, end = tokenizer.markers["</think>"], tokenizer.markers["<|im_end|>"]
    head = [tokenizer.markers[name] for name in ("<|im_assistant|>", "<|im_middle|>", "<think>")]
    texts = [" ".join(draw.choices(WORDS, k=90)) for _ in range(400)]
    parts = list(zip(texts, tokenizer.encode(texts), strict=True))
    for first in range(0, rows, SHARD):
        table = []
        for number in range(first, min(first + SHARD, rows)):
            (reasoning, one), (answer, other) = draw.choice(parts), draw.choice(parts)
            question = " ".join(draw.choices(WORDS, k=50)) + f" {number}"
            table.append(
                sequence(
                    number + 2,
                    request=request(question),
                    prompt_ids=[*one, *head],
                    completion_ids=[*one, think, *other, end],
                    answer_text=f"{reasoning}</think>{answer}<|im_end|>",
                    token_format="kimi-k2.5",
                    max_tokens=4096,
                )
            )
        yield SEQUENCES.table(table)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
