"""Prints the plan of a large run: both lengths of answers, the assumptions with their sources, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flows.forecast import draft_weights
from flows.scale import (
    NOTHING,
    Between,
    ScaleStep,
    Tokens,
    count_tokens,
    json_bytes,
    read_target,
    scale_forecast,
    sizes_of,
    unpinned,
)
from schemas.recipe import Recipe
from schemas.scale import Range, ScaleSpec

_WIDTH = 120
_TERABYTE, _GIGABYTE = 1e12, 1e9


def print_scale_plan(recipe: Recipe, spec: ScaleSpec, console: Console | None = None) -> None:
    """Print tokens, hours, terabytes and dollars of a recipe with a section `scale`; needs no network and no weights.

    Raises:
        RecipeError: the target's description cannot be read, or a dataset has no size.
    """
    console = console or Console(width=_WIDTH)
    facts = read_target(Path(spec.target))
    recipe.check_target(facts)
    console.print(_sizes(recipe, spec), f"Sizes: {spec.sizes_source}")
    ends = [(spec.answer_tokens.low, spec.kept_share.low), (spec.answer_tokens.high, spec.kept_share.high)]
    for answer, kept in dict.fromkeys(ends):
        steps = scale_forecast(recipe, facts, spec, answer, kept)
        total = _total_tokens(recipe, spec, answer, kept)
        console.print(_steps(recipe, steps, answer))
        console.print(*_notes(recipe, spec, steps, total, facts["hidden_size"]), sep="\n")
    console.print(_assumptions(recipe, spec))
    for source, figures in spec.compared_with.items():
        console.print(f"To compare: {figures} ({source})")
    parameters = draft_weights(recipe, facts) / 1e9
    console.print(f"The draft has {parameters:.2f} billion weights; its teacher is {recipe.target.model}.")
    if missing := unpinned(recipe):
        console.print(f"Before a run, give the commits that no file here knows: {', '.join(missing)}.")
    console.print("Ranges go from the best to the worst assumption. Nothing was run, and nothing was fetched.")


def _sizes(recipe: Recipe, spec: ScaleSpec) -> Table:
    table = Table(title=f"Plan of {recipe.name}: training datasets", title_justify="left")
    for column in ("dataset", "conversations", "answers", "new prompt tokens per turn", "licence"):
        table.add_column(column, justify="left" if column in ("dataset", "licence") else "right")
    licences = {dataset.name: dataset.licence for dataset in recipe.datasets}
    sizes = sizes_of(recipe, spec)
    for name, size in sizes.items():
        answers = size.conversations * size.turns
        table.add_row(name, f"{size.conversations:,}", f"{answers:,.0f}", f"{size.prompt_tokens:,.0f}", licences[name])
    table.add_section()
    answers = sum(size.conversations * size.turns for size in sizes.values())
    table.add_row("all", f"{sum(size.conversations for size in sizes.values()):,}", f"{answers:,.0f}", "", "")
    return table


def _steps(recipe: Recipe, steps: Sequence[ScaleStep], answer: float) -> Table:
    table = Table(title=f"Answers of {answer:,.0f} tokens", title_justify="left")
    for column in ("step", "rows", "tokens (million)", "hours", "GPU hours", "disk", "dollars"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for step in [*steps, _sum(steps)]:
        table.add_row(
            step.step,
            f"{step.rows:,.0f}" if step.rows else "",
            f"{step.tokens / 1e6:,.0f}" if step.tokens else "",
            _between(step.hours, ",.1f"),
            _between(step.gpu_hours, ",.0f"),
            _size(step.bytes),
            _between(step.usd, ",.0f"),
            end_section=step is steps[-1],
        )
    return table


def _sum(steps: Sequence[ScaleStep]) -> ScaleStep:
    added = dict.fromkeys(("hours", "gpu_hours", "usd"), NOTHING)
    for step in steps:
        added = {name: value + getattr(step, name) for name, value in added.items()}
    return ScaleStep("all", 0, 0, bytes=sum(step.bytes for step in steps), **added)


def _total_tokens(recipe: Recipe, spec: ScaleSpec, answer: float, kept: float) -> Tokens:
    parts = [count_tokens(size, answer, kept) for size in sizes_of(recipe, spec).values()]
    return Tokens(*(sum(getattr(part, name) for part in parts) for name in ("turns", "prompts", "answers")))


def _notes(recipe: Recipe, spec: ScaleSpec, steps: Sequence[ScaleStep], total: Tokens, hidden: int) -> Iterator[str]:
    training = next(step for step in steps if step.step == "train")
    per_billion = training.gpu_hours.times(1e9 / max(training.tokens, 1))
    yield f"Training: {_between(per_billion, ',.0f')} GPU hours per billion answer tokens that are visited."
    sent = json_bytes(recipe, hidden, total)
    if sent:
        rates = spec.extraction_tokens_per_second
        flow = Between(rates.low, rates.high).times(sent / total.all / _GIGABYTE)
        yield (
            f"SGLang sends states as JSON: {sent / _TERABYTE:,.0f} TB, {_between(flow, ',.1f')} GB per second at these "
            "rates. If the network and the reader cannot take that, extract with vLLM, which writes files."
        )
    budget = recipe.generation.serving.budget
    usd = next(step for step in steps if step.step == "generate").usd.high
    if recipe.generation.is_metered and budget.usd and usd > budget.usd:
        yield f"Generation would pass its cap of {budget.usd:,.0f} dollars: the run would stop there, with what it has."
    if recipe.generation.is_metered and usd > budget.approve_usd:
        yield f"A person is asked after the pilot: {budget.approve_usd:,.0f} dollars are approved in the recipe."


def _assumptions(recipe: Recipe, spec: ScaleSpec) -> Table:
    table = Table(title="Assumptions", title_justify="left")
    for column in ("what", "low", "high", "source"):
        table.add_column(column, justify="right" if column in ("low", "high") else "left", overflow="fold")
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Range):
            table.add_row(name, f"{value.low:,g}", f"{value.high:,g}", value.source)
    price = recipe.generation.serving.price
    source = "the recipe's generation.serving.price; a run reads OpenRouter's own"
    table.add_row("prompt dollars per million", f"{price.prompt_usd_per_million:g}", "", source)
    table.add_row("completion dollars per million", f"{price.completion_usd_per_million:g}", "", source)
    table.add_row("extraction_gpus, training_gpus", str(spec.extraction_gpus), str(spec.training_gpus), "the recipe")
    return table


def _between(value: Between, form: str) -> str:
    if value == NOTHING:
        return ""
    low, high = format(value.low, form), format(value.high, form)
    return low if low == high else f"{low} – {high}"


def _size(size: float) -> str:
    if size >= _TERABYTE:
        return f"{size / _TERABYTE:,.1f} TB"
    return f"{size / _GIGABYTE:,.1f} GB" if size else ""
