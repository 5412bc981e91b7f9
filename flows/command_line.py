"""The terminal side of the flows: arguments, dry runs, the Prefect server to use, and short error messages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.interruption import stopping_at_once
from flows.server import server_in_use
from schemas.benchmarking import BenchmarkRecipe, DraftSource, load_benchmark_recipe
from schemas.errors import EyasError, GateFailed
from schemas.recipe import Recipe, load_recipe
from tasks.artifacts.redaction import redact


def main(arguments: list[str] | None = None) -> None:
    """Run, or only plan, a recipe; exits 1 with the reason when it cannot be done, 2 when the command is wrong."""
    parser = _parser("build_draft", "From prompts to a measured EAGLE-3 draft.", "recipes/quickstart")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan with forecasts of tokens, time and disk, and stop"
    )
    options = parser.parse_args(arguments)
    with _short_errors():
        recipe = load_recipe(options.recipe)
        if options.dry_run:
            from flows.plan import print_plan

            print_plan(recipe)
            return
        run(recipe)


def run(recipe: Recipe) -> None:
    """Run `build_draft` in this process, on the local Prefect server when one is up, else on a temporary one."""
    from flows.build_draft import build_draft

    with stopping_at_once(), server_in_use():
        build_draft(recipe)


def main_refresh(arguments: list[str] | None = None) -> None:
    """Make a recipe's corpus, or say how far a run of it is; exits as `main` does."""
    parser = _parser("refresh_dataset", "From prompts to the audited corpus of a draft.", "recipes/quickstart")
    parser.add_argument(
        "--status", action="store_true", help="print how far a run is, from what it leaves on disk, and stop"
    )
    options = parser.parse_args(arguments)
    with _short_errors():
        recipe = load_recipe(options.recipe)
        if options.status:
            from flows.status import print_status

            print_status(recipe)
            return
        run_refresh(recipe)


def run_refresh(recipe: Recipe) -> None:
    """Run `refresh_dataset` in this process, on the local Prefect server when one is up, else on a temporary one."""
    from flows.refresh_dataset import refresh_dataset

    with stopping_at_once(), server_in_use():
        refresh_dataset(recipe)


def main_benchmark(arguments: list[str] | None = None) -> None:
    """Run a benchmark's recipe; exits as `main` does."""
    parser = _parser("benchmark_draft", "What a draft saves in the engines that serve it.", "benchmarks/smollm2")
    parser.add_argument(
        "--draft", default="", help="in place of the recipe's: a folder, artifact:KEY, or a Hugging Face id"
    )
    options = parser.parse_args(arguments)
    with _short_errors():
        recipe = load_benchmark_recipe(options.recipe)
        if options.draft:
            recipe = recipe.model_copy(update={"draft": DraftSource(source=options.draft)})
        run_benchmark(recipe)


def run_benchmark(recipe: BenchmarkRecipe) -> None:
    """Run `benchmark_draft` in this process, on the local Prefect server when one is up, else on a temporary one."""
    from flows.benchmark_draft import benchmark_draft

    with stopping_at_once(), server_in_use():
        benchmark_draft(recipe)


@contextmanager
def _short_errors() -> Iterator[None]:
    """What the user can put right is told in short, and ends the process with 1."""
    try:
        yield
    except EyasError as exc:
        said = redact(str(exc))
        if isinstance(exc, GateFailed):  # its table is long, and stands in Prefect's log above
            said = said.partition("\n")[0]
        sys.stdout.flush()
        print(f"error: {said}", file=sys.stderr, flush=True)
        sys.exit(1)


def _parser(flow: str, what: str, example: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m flows.{flow}",
        description=f"{what} Results go to ./store, or to EYAS_STORE; "
        "a run that was stopped goes on where it stopped when it is started again.",
    )
    parser.add_argument("recipe", type=Path, help=f"a recipe, for instance deployments/{example}.yaml")
    return parser
