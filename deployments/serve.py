"""`make up`: a Prefect server on this machine, and the flows that can be started from its web page. Ctrl-C stops both.

A Prefect server that already runs at the address, or the one that PREFECT_API_URL names, is used instead of a new one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from flows.server import Address, ServerError, child_server, is_prefect
from schemas.benchmarking import BenchmarkRecipe, load_benchmark_recipe
from schemas.errors import EyasError
from schemas.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parent / "recipes"
BENCHMARKS = Path(__file__).parent / "benchmarks"
SERVED = ("quickstart", "smoke")
BENCHMARKED = ("smollm2",)


def main() -> int:
    """Serve until interrupted; returns 1 with the reason if that cannot be done."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell started us in the background
    try:
        with server() as api:
            _serve_flows(api)
    except EyasError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped")
    return 0


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A running server's API: the configured one, one that runs already, or a child process that ends with the block.

    Raises:
        ServerError: the port belongs to another program, or the server does not start.
    """
    if configured := os.environ.get("PREFECT_API_URL"):
        if not is_prefect(configured):
            raise ServerError(
                f"PREFECT_API_URL is {configured}, where no Prefect server answers: start it, or unset it"
            )
        print(f"using the Prefect server at {configured}")
        yield configured
        return
    address = Address.from_environment()
    os.environ |= address.environment
    if is_prefect(address.api):
        print(f"using the Prefect server that already runs at {address.page}")
        yield address.api
        return
    if address.answers():
        raise ServerError(
            f"port {address.port} of {address.host} is taken by another program: "
            "stop it, or choose another port: PREFECT_SERVER_API_PORT=4201 make up"
        )
    with child_server(address, "eyas-server.log"):
        yield address.api


def _serve_flows(api: str) -> None:
    from prefect import serve
    from prefect.deployments.runner import RunnerDeployment
    from prefect.types.entrypoint import EntrypointType

    from flows.benchmark_draft import benchmark_draft
    from flows.build_draft import build_draft
    from flows.refresh_dataset import refresh_dataset

    recipes = {name: load_recipe(RECIPES / f"{name}.yaml") for name in SERVED}
    offered: list[tuple[Any, str, Recipe | BenchmarkRecipe]] = [
        *((flow, name, recipe) for flow in (build_draft, refresh_dataset) for name, recipe in recipes.items()),
        *((benchmark_draft, name, load_benchmark_recipe(BENCHMARKS / f"{name}.yaml")) for name in BENCHMARKED),
    ]
    deployments = [
        cast(
            RunnerDeployment,
            flow.to_deployment(
                name,
                parameters={"recipe": recipe.model_dump(mode="json")},
                tags=["eyas"],
                entrypoint_type=EntrypointType.MODULE_PATH,
            ),
        )
        for flow, name, recipe in offered
    ]
    page = api.removesuffix("/api")
    names = " or ".join((*SERVED, *BENCHMARKED))
    print(f"\nOpen {page}/deployments, choose {names}, and press Run. Ctrl-C here stops all.\n")
    serve(*deployments, limit=1, pause_on_shutdown=False)


if __name__ == "__main__":
    sys.exit(main())
