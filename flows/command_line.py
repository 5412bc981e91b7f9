"""The terminal side of the flows: arguments, dry runs, the Prefect server to use, and short error messages."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flows.interruption import stopping_at_once
from flows.server import server_in_use
from schemas.benchmarking import BenchmarkRecipe, load_benchmark_recipe
from schemas.errors import EyasError
from schemas.recipe import Recipe, load_recipe
from tasks.artifacts.redaction import redact


def main(arguments: list[str] | None = None) -> None:
    """Run, or only plan, a recipe; exits 1 with the reason when it cannot be done, 2 when the command is wrong."""
    options = _parser().parse_args(arguments)
    try:
        recipe = load_recipe(options.recipe)
        if options.dry_run:
            from flows.plan import print_plan

            print_plan(recipe)
            return
        run(recipe)
    except EyasError as exc:
        print(f"error: {redact(str(exc))}", file=sys.stderr)
        sys.exit(1)


def run(recipe: Recipe) -> None:
    """Run `build_draft` in this process, on the local Prefect server when one is up, else on a temporary one."""
    from flows.build_draft import build_draft

    with stopping_at_once(), server_in_use():
        build_draft(recipe)


def main_benchmark(arguments: list[str] | None = None) -> None:
    """Run a benchmark's recipe; exits 1 with the reason when it cannot be done, 2 when the command is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.benchmark_draft",
        description="What a draft saves in the engines that serve it. Results go to ./store, or to EYAS_STORE; a run "
        "that was stopped goes on where it stopped when it is started again.",
    )
    parser.add_argument("recipe", type=Path, help="a recipe, for instance deployments/recipes/benchmark.yaml")
    options = parser.parse_args(arguments)
    try:
        run_benchmark(load_benchmark_recipe(options.recipe))
    except EyasError as exc:
        print(f"error: {redact(str(exc))}", file=sys.stderr)
        sys.exit(1)


def run_benchmark(recipe: BenchmarkRecipe) -> None:
    """Run `benchmark_draft` in this process, on the local Prefect server when one is up, else on a temporary one."""
    from flows.benchmark_draft import benchmark_draft

    with stopping_at_once(), server_in_use():
        benchmark_draft(recipe)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.build_draft",
        description="From prompts to a measured EAGLE-3 draft. Results go to ./store, or to EYAS_STORE; "
        "a run that was stopped goes on where it stopped when it is started again.",
    )
    parser.add_argument("recipe", type=Path, help="a recipe, for instance deployments/recipes/quickstart.yaml")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan with forecasts of tokens, time and disk, and stop"
    )
    return parser
