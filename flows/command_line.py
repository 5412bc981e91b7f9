"""The terminal side of `build_draft`: arguments, dry runs, the Prefect server to use, and short error messages."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import httpx
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.interruption import stopping_at_once
from schemas.errors import EyasError
from schemas.recipe import Recipe, load_recipe

LOCAL_API = "http://127.0.0.1:4200/api"


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
        print(f"error: {exc}", file=sys.stderr)
        sys.exit(1)


def run(recipe: Recipe) -> None:
    """Run `build_draft` in this process, on the local Prefect server when one is up, else on an ephemeral one."""
    from flows.build_draft import build_draft

    with local_server(), stopping_at_once():
        build_draft(recipe)


def local_server() -> AbstractContextManager[Any]:
    """Use the server of `make up` when it answers and no other is configured."""
    if PREFECT_API_URL.value():
        return nullcontext()
    try:
        healthy = httpx.get(f"{LOCAL_API}/health", timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        healthy = False
    return temporary_settings({PREFECT_API_URL: LOCAL_API}) if healthy else nullcontext()


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
