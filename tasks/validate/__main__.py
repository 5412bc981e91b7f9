"""`python -m tasks.validate SEQUENCES.parquet`: the audit of sequences from anywhere, printed; nothing is written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tasks.environment  # noqa: F401 (before Prefect)

# isort: split
from rich.console import Console

from schemas.errors import EyasError
from schemas.recipe import load_recipe
from schemas.sections import AuditSpec, ReconstructionSpec
from tasks.validate.audit import Audit, AuditFailed
from tasks.validate.display import print_findings
from tasks.validate.files import known_of, read_batches, token_format_of

_PIPE_WIDTH = 160


def main(arguments: list[str] | None = None) -> int:
    """Audit the files; returns 0, 1 if a gate would stop the flow, 2 if the files or options cannot be used."""
    options = _parser().parse_args(arguments)
    terminal = sys.stdout.isatty()
    try:
        return _audit(options, _console(terminal))
    except EyasError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2


def _console(terminal: bool) -> Console:
    """A terminal on which texts stand as they are: names of providers may look like markup."""
    width = None if terminal else _PIPE_WIDTH
    return Console(width=width, soft_wrap=not terminal, markup=False, emoji=False)


def _audit(options: argparse.Namespace, console: Console) -> int:
    spec, reconstruction = AuditSpec(), ReconstructionSpec()
    if options.recipe:
        recipe = load_recipe(options.recipe)
        spec, reconstruction = recipe.audit, recipe.reconstruction
    token_format = options.format or (token_format_of(options.files) if options.tokenizer else "")
    audit = Audit(known_of(options.tokenizer, token_format, options.benchmark), spec, reconstruction)
    for path in options.files:
        for batch in read_batches(path):
            audit.distributions.take_deltas(batch)
            audit.take(batch)
    print_findings(audit.findings(), audit.unchecked, console)
    try:
        audit.judge()
    except AuditFailed as exc:
        console.print(exc.brief, style="red", highlight=False, markup=False)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.validate",
        description="Audits token sequences as the flow does, and says what its gates would do. Exit code 1: a gate "
        "would stop the flow. Exit code 2: the files or options cannot be used.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="SEQUENCES.parquet", help="sequences, one row an answer")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="the served model's tokenizer folder; else ids are hardly checked"
    )
    parser.add_argument("--format", metavar="NAME", help="token format, as kimi-k2.5; what the rows name by default")
    parser.add_argument(
        "--benchmark", type=Path, metavar="PROMPTS.parquet", help="benchmark prompts that rows must not repeat"
    )
    parser.add_argument("--recipe", type=Path, metavar="RECIPE.yaml", help="whose limits to apply; else the defaults")
    return parser


if __name__ == "__main__":
    sys.exit(main())
