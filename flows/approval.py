"""The gate between a pilot and the rest: a person sees what the rest will cost, and approves it once.

Under a worker the flow run is suspended until its form is filled in, under `serve` it is paused; a terminal asks y/N.
Where nobody can be asked the run stops and says so. What was approved is a cap on spending, not a wish.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID

from prefect.context import FlowRunContext
from prefect.flow_runs import pause_flow_run, suspend_flow_run
from prefect.input import RunInput
from pydantic import Field, create_model

from flows.steps import Steps, in_order
from schemas.errors import NotApproved
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Rows
from tasks.artifacts.task import peek
from tasks.generate.decision import Decision, Where, decided, plan_of, record_decision
from tasks.generate.piloted import committed_nanousd, forecast_served
from tasks.generate.prices import NANO, nanousd, usd
from tasks.generate.served import generate_served
from tasks.report.forecast import forecast_markdown, report_forecast

_WAIT_SECONDS = 7 * 24 * 3600  # for a person
_POLL_SECONDS = 5
_PLANNED = ("target", "prompts", "spec", "partitions", "markers_in_prompt", "seed")
_NAMES = 8  # datasets that a question names

Form = TypeVar("Form", bound="Approval")


class Approval(RunInput):
    """The form."""

    decision: Decision = Field(
        "stop", title="Decision", description="Stop ends the run; what the pilot answered is kept."
    )
    cap_usd: float = Field(
        1.0,
        title="Cap in USD",
        description="Most that is spent from now on; at this sum nothing more is sent.",
        ge=0.01,
        le=1_000_000,
        allow_inf_nan=False,
    )


@dataclass(frozen=True)
class _Answer:
    decision: Decision
    cap_nanousd: int  # from now on
    where: Where


@dataclass(frozen=True)
class _Question:
    """What is asked, and the figures behind it; money in nano-dollars."""

    title: str
    details: str
    expected: int
    suggested_usd: float
    worst_request: int
    baseline: int
    committed: int  # when the forecast was made
    is_free: bool

    @classmethod
    def of(cls, forecast: Rows) -> _Question:
        rows = forecast.table.to_pylist()
        (run,) = [row for row in rows if not row["dataset"]]
        names = [row["dataset"] for row in rows if row["dataset"]]
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        worst = forecast.facts["worst_request_nanousd"]
        expected = nanousd(run["usd"])
        return cls(
            f"Continue inference: approve {usd(expected)} for {', '.join(names[:_NAMES])}{more}?",
            forecast_markdown(forecast),
            expected,
            # the last request is sent only if its worst case still fits
            math.ceil(100 * (run["usd_high"] + worst / NANO)) / 100,
            worst,
            forecast.facts["baseline_nanousd"],
            forecast.facts["committed_nanousd"],
            not run["usd_worst"],
        )


def approved_cap(steps: Steps, store: Path, recipe: Recipe, inputs: Mapping[str, Any]) -> int | None:
    """Nano-dollars that the run may have spent in all, as approved; None where nothing would be spent.

    Args:
        steps: of the flow run.
        store: its store.
        recipe: of the run.
        inputs: what `generate_served` will be called with.

    Raises:
        NotApproved: it was refused, or nobody could be asked.
        EngineError: the pilot could not be asked.
    """
    if not recipe.generation.is_metered or peek(generate_served, **inputs) is not None:
        return None
    run, budget = recipe.name, recipe.generation.serving.budget
    plan, allowed = plan_of(run, {name: inputs[name] for name in _PLANNED}), nanousd(budget.approve_usd)
    baseline = -1
    for attempt in count():
        pilot = {**inputs, "price": recipe.generation.serving.price, "pilot_prompts": budget.pilot_prompts}
        future = steps.submit(forecast_served, "pilot" if not attempt else "pilot again", **pilot, attempt=attempt)
        question = _Question.of(forecast := in_order(future, recipe.generation.serving.grace_seconds))
        baseline = question.baseline if baseline < 0 else baseline
        if question.is_free:
            return None
        report_forecast(run, forecast)
        committed = committed_nanousd(store, run)
        least = committed + question.worst_request  # a cap below this lets nothing through
        is_allowed = question.committed - baseline + question.expected <= allowed
        if is_allowed and least <= baseline + allowed:
            return baseline + allowed
        if (known := decided(run, plan, attempt)) is None:
            if is_allowed and committed > question.committed:
                continue  # what the recipe allows was used up since that forecast
            return _decide(steps, run, plan, attempt, question, committed)
        if least <= known["cap_nanousd"]:
            return known["cap_nanousd"]
    raise AssertionError("unreachable")


def _decide(steps: Steps, run: str, plan: str, attempt: int, question: _Question, committed: int) -> int:
    """Have a person decide, and keep it."""
    flow_run = _flow_run_id()
    if decided(run, plan, attempt, refused_run=flow_run):
        raise _refused(question)
    answer = _ask(question, f"approve-{plan[:16]}-{attempt}")
    is_stop = answer.decision == "stop"
    kept = steps.submit(
        record_decision,
        "decision",
        run=run,
        plan=plan,
        attempt=attempt,
        refused_run=flow_run if is_stop else "",
        decision=answer.decision,
        cap_nanousd=0 if is_stop else committed + answer.cap_nanousd,
        committed_nanousd=committed,
        forecast_usd=question.expected / NANO,
        decided_in=answer.where,
    ).result()
    if is_stop:
        raise _refused(question)
    return int(kept.table["cap_nanousd"][0].as_py())


def _refused(question: _Question) -> NotApproved:
    return NotApproved(
        f"{usd(question.expected)} for the rest were not approved, so that nothing more is asked; the pilot's answers "
        "are kept. Start again to be asked again"
    )


def _ask(question: _Question, key: str) -> _Answer:
    match _place():
        case "worker":
            form = suspend_flow_run(wait_for_input=_form(question), timeout=_WAIT_SECONDS, key=key)
        case "served":
            form = pause_flow_run(
                wait_for_input=_form(question), timeout=_WAIT_SECONDS, poll_interval=_POLL_SECONDS, key=key
            )
        case "local":
            return _ask_terminal(question)
    if form is None:
        raise NotApproved("the flow run was resumed without its form, so that nothing is approved")
    return _Answer(form.decision, nanousd(form.cap_usd), "form")


def _ask_terminal(question: _Question) -> _Answer:
    suggested = f"${question.suggested_usd:,.2f}"
    if not sys.stdin.isatty():
        raise NotApproved(
            f"the rest would cost about {usd(question.expected)}, and nobody can be asked here: give "
            f"generation.serving.budget.approve_usd in the recipe (the pilot counts too, and the last request needs "
            f"room, so {suggested} or more), or start this in a terminal or from Prefect. The pilot's answers are kept"
        )
    while True:
        try:
            said = input(f"{question.title} y for a cap of {suggested}, another cap in USD, or N: ").strip().lower()
        except EOFError:
            said = ""
        if said in ("y", "yes"):
            return _Answer("approve", nanousd(question.suggested_usd), "terminal")
        try:
            cap = float(said.removeprefix("$").replace(",", ""))
        except ValueError:
            return _Answer("stop", 0, "terminal")
        if math.isfinite(cap) and cap > 0:
            return _Answer("approve", nanousd(cap), "terminal")


def _place() -> Literal["worker", "served", "local"]:
    """How this flow run was started: only one that a deployment started can wait for a form."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return "local"
    return "worker" if context.flow_run.work_pool_name else "served"


def _flow_run_id() -> str:
    context = FlowRunContext.get()
    return str(context.flow_run.id if context and context.flow_run else UUID(int=0))


def _form(question: _Question) -> type[Approval]:
    spent = f"Spent so far, the pilot included: {usd(question.committed)}."
    description = f"**{question.title}**\n\n{question.details}\n\n{spent}"
    return prefilled(Approval, description, cap_usd=question.suggested_usd)


def prefilled(form: type[Form], description: str, **values: Any) -> type[Form]:
    """The form with these values in it.

    `RunInput.with_initial_data` would drop the constraints, titles and descriptions of every field that it fills in.
    """
    fields: dict[str, Any] = {}
    for name, value in values.items():
        info = copy(form.model_fields[name])
        info.default = value
        fields[name] = (info.annotation, info)
    made = create_model(form.__name__, __base__=form, **fields)
    made._description = description  # noqa: SLF001 (how Prefect itself sets it)
    return made
