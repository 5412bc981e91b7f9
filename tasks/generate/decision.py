"""What a person decided about a plan's cost: kept in the store, so that nobody is asked twice for the same.

A plan is what is asked (target, prompts, sampling, rules) by one run's budget. An approval holds until its cap leaves
no room for a request; a refusal holds for the flow run that was refused, and a new run asks anew.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from schemas.forecast import DECISION
from tasks.artifacts.artifact import Rows
from tasks.artifacts.keys import canonical
from tasks.artifacts.task import artifact_task, peek

Decision = Literal["approve", "stop"]
Where = Literal["form", "terminal"]


@artifact_task(version="1", exclude=("decision", "cap_nanousd", "committed_nanousd", "forecast_usd", "decided_in"))
def record_decision(
    run: str,
    plan: str,
    attempt: int,
    refused_run: str,
    decision: Decision,
    cap_nanousd: int,
    committed_nanousd: int,
    forecast_usd: float,
    decided_in: Where,
) -> Rows:
    """Keep a decision; the first for a plan and attempt stays. Contract DECISION.

    Args:
        run: the recipe's name.
        plan: from `plan_of`.
        attempt: how many approvals of the plan were used up before.
        refused_run: the flow run that a refusal holds for; empty for an approval.
        decision: what was decided.
        cap_nanousd: most that the run may have spent in all.
        committed_nanousd: what it had when that was decided.
        forecast_usd: what was expected for the rest.
        decided_in: where.
    """
    row = {
        "run": run,
        "decision": decision,
        "cap_nanousd": cap_nanousd,
        "committed_nanousd": committed_nanousd,
        "forecast_usd": forecast_usd,
        "decided_in": decided_in,
        "decided_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return Rows(contract=DECISION.name, table=DECISION.table([row], "decision"))


def plan_of(run: str, inputs: Mapping[str, Any]) -> str:
    """Names a plan by the run whose money it takes and by all that shapes the answers."""
    return hashlib.sha256(canonical({"run": run, **inputs})).hexdigest()


def decided(run: str, plan: str, attempt: int, refused_run: str = "") -> dict[str, Any] | None:
    """The decision that was kept, if there is one."""
    unknown: dict[str, Any] = {"decision": "stop", "cap_nanousd": 0, "committed_nanousd": 0, "forecast_usd": 0.0}
    key = {"run": run, "plan": plan, "attempt": attempt, "refused_run": refused_run}
    found = peek(record_decision, **key, **unknown, decided_in="form")
    return found.table.to_pylist()[0] if found else None
