"""`--status`: where a run stands, from what it leaves on disk; asks neither the run nor Prefect."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from schemas.errors import RecipeError
from schemas.recipe import Recipe
from tasks.artifacts.store import open_store
from tasks.generate.prices import usd
from tasks.generate.status import FINISHED, PILOT, Status, read_status


def print_status(recipe: Recipe, console: Console | None = None) -> None:
    """Print the status of the recipe's run.

    Raises:
        RecipeError: its answers do not come from servers.
        StoreError: the store cannot be used, or has no such run.
    """
    if not recipe.generation.is_served:
        raise RecipeError(
            f"{recipe.name} generates its answers in its own process, which reports only to its log and to Prefect; "
            "a status is kept of answers from servers"
        )
    status = read_status(open_store(), recipe.name)
    console = console or Console()
    console.print(_table(recipe.name, status))
    for line in lines(status, time.time()):
        console.print(line, soft_wrap=True)


def lines(status: Status, now: float) -> list[str]:
    """What holds for the whole run."""
    standing = status.standing
    ago = f"{max(0, round(now - standing.updated_ms / 1000)):,} s ago"
    if standing.is_alive:
        state = f"{standing.phase} goes on (process {standing.process} on {standing.host}, told {ago})"
    elif standing.phase == PILOT and standing.ended == FINISHED:
        state = f"the pilot is answered (told {ago}); what is left waits for approval"
    else:
        state = f"{standing.phase}: {standing.ended or 'its process is gone'} (told {ago}); the same command goes on"
    caps = [usd(standing.cap)] if standing.cap is not None else []
    caps += [f"{standing.cap_tokens:,} tokens"] if standing.cap_tokens is not None else []
    spent = f"spent {usd(standing.settled)} and {standing.settled_tokens:,} tokens"
    spent += f" of {' and '.join(caps)}" if caps else ", without a cap"
    if standing.reserved:
        spent += f"; {usd(standing.reserved)} more at most for what is in flight or of unknown bill"
    found = [state, spent]
    if standing.is_alive:
        eta = "unknown" if status.seconds_left is None else _duration(status.seconds_left)
        found.append(
            f"{status.requests_per_second:,.1f} requests/s, {status.tokens_per_second:,.0f} tokens/s in the last "
            f"minute; {status.left:,} prompts left, time to go {eta}"
        )
    return found


def _table(run: str, status: Status) -> Table:
    table = Table(title=f"Answers of {run}", title_justify="left", header_style="bold")
    for heading in ("dataset", "done", "of", "tokens", "spend", "failed attempts"):
        table.add_column(heading, justify="left" if heading in ("dataset", "failed attempts") else "right")
    for one in status.datasets:
        errors = ", ".join(f"{kind} {count:,}" for kind, count in sorted(one.errors.items()))
        cost = usd(one.cost_nanousd)
        table.add_row(one.name, f"{one.done:,}", f"{one.prompts:,}", f"{one.tokens:,}", cost, errors or "none")
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
