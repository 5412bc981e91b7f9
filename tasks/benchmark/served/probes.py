"""The task that foresees an engine's counts, with the draft wired as configured or in the ways that go wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import torch

from schemas.errors import DraftError
from schemas.parity import AS_CONFIGURED, SURVIVALS
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.task import artifact_task
from tasks.benchmark.batch import DecodeSettings
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import PlainDrafter
from tasks.benchmark.served.figures import Place, Row
from tasks.benchmark.served.simulated import Answered, survivals
from tasks.draft.checkpoint import load_draft
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.progress import progress
from tasks.target.layers import EMBEDDING
from tasks.target.model import Target, load_target
from tasks.target.rendering import RenderedPrompt

_PLAIN_THETA = 10000.0  # what readers take that do not find rope_theta


@artifact_task(version="1", exclude=("target_spec", "compute"))
def probe_wiring(
    target: Shards,
    draft: Shards,
    run: Shards,
    steps: int,
    probes: bool,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Rows:
    """Survivals of the draft's guesses over one run's greedy answers.

    Args:
        target: the prepared target.
        draft: the adopted draft.
        run: a result of `measure_run` with temperature 0.
        steps: guesses per chain.
        probes: also with the draft wired wrongly, in every way that engines have been seen to do.
        target_spec: where the target is.
        compute: threads.

    Raises:
        TargetError: the target does not load here.
    """
    torch.set_num_threads(compute.training_threads)
    model = load_target(target, target_spec)
    loaded = load_draft(draft).eval().requires_grad_(False).to(model.device)
    rows = reference_rows(run.table("served"))
    answered = _continued(model, rows, steps)
    wired = variants(loaded.config, target.facts["num_layers"]) if probes else {AS_CONFIGURED: loaded.config}
    table = SURVIVALS.table(_survivals(loaded, model, wired, rows, answered, steps), "survivals")
    return Rows(contract=SURVIVALS.name, table=table)


def reference_rows(answers: pa.Table) -> list[Row]:
    """The greedy answers of a run at its lowest concurrency.

    Raises:
        DraftError: it has none.
    """
    rows = [row for row in answers.to_pylist() if row["temperature"] == 0]
    if not rows:
        raise DraftError("parity needs answers at temperature 0: add it to measure.temperatures")
    first = min(Place.of(row).concurrency for row in rows)
    return [row for row in rows if row["concurrency"] == first]


def variants(config: DraftConfig, num_layers: int) -> dict[str, DraftConfig]:
    """The draft as configured, and wired in the ways that load without an error, by what is wrong."""
    found = {AS_CONFIGURED: config}
    for name, distance in (("layers one lower", -1), ("layers one higher", 1)):
        layers = tuple(layer + distance for layer in config.aux_layers)
        if layers[0] > EMBEDDING and layers[-1] < num_layers:
            found[name] = config.model_copy(update={"aux_layers": layers})
    for switch in ("norm_before_residual", "norm_output"):
        found[f"{switch} {'off' if getattr(config, switch) else 'on'}"] = config.model_copy(
            update={switch: not getattr(config, switch)}
        )
    rope = config.rope_parameters
    if rope.get("rope_theta") != _PLAIN_THETA:
        plain = rope | {"rope_theta": _PLAIN_THETA}
        found["rope_theta not read"] = config.model_copy(update={"rope_parameters": plain})
    if rope.get("rope_type", "default") != "default":
        plain = {"rope_type": "default", "rope_theta": rope.get("rope_theta", _PLAIN_THETA)}
        found["rope scaling not read"] = config.model_copy(update={"rope_parameters": plain})
    return found


def _survivals(
    draft: Eagle3Draft,
    target: Target,
    wired: dict[str, DraftConfig],
    rows: Sequence[Row],
    answered: Sequence[Answered],
    steps: int,
) -> Iterator[dict[str, Any]]:
    with progress("benchmark.probes", len(wired) * len(rows), "answers") as bar:
        for name, config in wired.items():
            variant = Eagle3Draft(config).eval().requires_grad_(False).to(target.device)
            variant.load_state_dict(draft.state_dict())
            for row, one in zip(rows, answered, strict=True):
                yield {
                    "prompt_id": row["prompt_id"],
                    "variant": name,
                    "steps": steps,
                    "prompt_ids": row["prompt_ids"],
                    "output_ids": row["output_ids"],
                    "survived": survivals(variant, target, config.aux_layers, one, steps),
                }
                bar.advance(1)


def _continued(target: Target, rows: Sequence[Row], steps: int) -> list[Answered]:
    """The answers with what the target would have said next, up to an end: drafts that are cut off are counted too."""
    settings = DecodeSettings((0.0,), 0, steps, tuple(target.facts["eos_ids"]), 0)
    cut = [row for row in rows if row["finish_reason"] == "length"]
    prompts = [
        RenderedPrompt(row["prompt_id"], row["dataset"], (*row["prompt_ids"], *row["output_ids"])) for row in cut
    ]
    beyond = {
        prompt.prompt_id: tuple(decode(target, PlainDrafter(), "none", [prompt], settings)[0].output_ids)
        for prompt in prompts
    }
    return [
        Answered(tuple(row["prompt_ids"]), tuple(row["output_ids"]), beyond.get(row["prompt_id"], ())) for row in rows
    ]
