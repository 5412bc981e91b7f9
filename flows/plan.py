"""The plan of a dry run: reads the sources and the target's shape, forecasts, prints, and runs nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from flows.forecast import Forecast, Prompts, forecast, measure_speed
from flows.scale_plan import print_scale_plan
from schemas.recipe import Recipe
from tasks.artifacts.store import open_store
from tasks.prompts.gather import gather
from tasks.prompts.locate import locate_sources
from tasks.prompts.selection import Prompt
from tasks.target.task import preview_target


def print_plan(recipe: Recipe) -> None:
    """Print forecasts of rows, tokens, time and disk per step.

    Raises:
        EyasError: the recipe, a source, the target or the store cannot be used.
    """
    if recipe.scale is not None:
        print_scale_plan(recipe, recipe.scale)
        return
    store = open_store()
    facts = preview_target(recipe.target)
    recipe.check_target(facts)
    prompts = _count_prompts(recipe)
    recipe.check_prompts(prompts.train)
    workers = int(os.environ["PREFECT_TASKS_RUNNER_THREAD_POOL_MAX_WORKERS"])
    speed = measure_speed(workers, facts["hidden_size"], facts["intermediate_size"])
    steps = forecast(recipe, facts, prompts, speed)
    console = Console()
    console.print(_table(recipe, steps))
    console.print(
        f"{prompts.train} training and {prompts.benchmark} benchmark prompts; {workers} tasks at a time; "
        f"{shutil.disk_usage(store).free / 2**30:,.1f} GiB free in {store}. "
        "Times are for an idle machine; steps that are cached take none. Nothing was run."
    )


def _count_prompts(recipe: Recipe) -> Prompts:
    gathered = gather(recipe.datasets, locate_sources(recipe.datasets))
    return Prompts(
        train=len(gathered.train),
        benchmark=len(gathered.benchmark),
        train_characters=_characters(gathered.train),
        benchmark_characters=_characters(gathered.benchmark),
        train_history=sum(prompt.turn for prompt in gathered.train),
    )


def _characters(prompts: Iterable[Prompt]) -> int:
    """Of all prompts; a later turn's has what was said before it, recorded answers left out."""
    said: dict[str, int] = {}
    root = ""
    total = 0
    for prompt in prompts:  # the turns of one conversation stand together, earlier ones first
        if prompt.root_id != root:
            root = prompt.root_id
            said.clear()
        said[prompt.prompt_id] = len(prompt.messages) + (said[prompt.parent_id] if prompt.parent_id else 0)
        total += said[prompt.prompt_id] + len(prompt.tools or "")
    return total


def _table(recipe: Recipe, steps: list[Forecast]) -> Table:
    table = Table(title=f"Plan of {recipe.name}: forecasts")
    for column in ("step", "rows", "tokens", "time", "disk"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for step in [*steps, _total(steps)]:
        minutes, seconds = divmod(round(step.seconds), 60)
        table.add_row(
            step.step,
            f"{step.rows:,}" if step.rows else "",
            f"{step.tokens:,}" if step.tokens else "",
            f"{minutes}:{seconds:02d}",
            f"{step.bytes / 2**20:,.1f} MiB",
            end_section=step is steps[-1],
        )
    return table


def _total(steps: list[Forecast]) -> Forecast:
    return Forecast("all", 0, 0, sum(s.seconds for s in steps), sum(s.bytes for s in steps))
