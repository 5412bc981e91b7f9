"""What is lost, asked twice or paid for twice when a run over HTTP is killed: nothing that had been read.

    python -m tests.benchmarks.served_losses --prompts 100000

The fake server goes wrong in every way for 5 % of the requests; the run is killed with SIGKILL three times.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import tests.environment  # noqa: F401 (before Prefect)
from tests.generate.losses import kill_and_restart
from tests.generate.serving import Run, faults, url_of, vocabulary
from tests.servers.fake import fake_server


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--cap-usd", type=float, default=20.0)
    parser.add_argument("--engine", default="openrouter")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = vocabulary(Path(folder) / "words.json")
        with fake_server(vocabulary=words) as server:
            server.script(*faults(options.faults))
            run = Run(
                url_of(server, options.engine),
                f"{folder}/store",
                options.engine,
                options.prompts,
                serving={"budget": {"usd": options.cap_usd}},
                concurrency=options.concurrency,
            )
            started = time.monotonic()
            found = kill_and_restart(run, server, options.kills)
            seconds = time.monotonic() - started
    bill = found.reconciliation
    print(f"prompts {options.prompts:,}, faults {options.faults:.0%}, kills {options.kills}, {seconds:.0f} s in all")
    print(f"seconds of each child: {', '.join(f'{one:.1f}' for one in found.seconds)}")
    print(f"answers on disk at each kill: {found.journaled}")
    print(
        f"answers in the result {found.rows:,}, of different prompts {found.prompts:,}, quarantined {found.quarantined}"
    )
    print(f"asked again though on disk: {found.asked_again}; never answered: {found.not_answered}")
    print(f"answered twice by the server: {found.answered_twice}, of these read and not on disk: {found.read_and_lost}")
    print(f"spent ${found.spent_usd:.6f} of ${options.cap_usd}, bills above their worst case: {found.overruns}")
    print(
        f"account less ledger: {bill.difference:,} nano-dollars, explained {bill.explained}, by {len(bill.unknown):,} "
        f"attempts of unknown bill (at most {bill.unknown_nanousd:,} nano-dollars)"
    )


if __name__ == "__main__":
    main()
