"""The folder that is given away: the exported draft as engines read it, with a model card that says how it was made.

The weights are hard links to those in the store where the disk allows it, so that gigabytes are not kept twice.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from schemas.recipe import Recipe
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.files import write_bytes
from tasks.benchmark.statistics import Measured
from tasks.report.markdown import grid
from tasks.report.steps import StepRow
from tasks.report.summary import ACCEPTANCE_HEADINGS, acceptance_cells

CARD = "README.md"
_WEIGHTS = ".safetensors"
_EXPORT = "export "
_TRAINED = "trained"  # the layout that SGLang and vLLM both read lies at the top, others in folders of their names
_NOT_TOLD = frozenset({"endpoints", "compute", "scale"})  # addresses and machines, which say nothing of the draft


def write_release(folder: Path, recipe: Recipe, rows: Sequence[StepRow], measured: Measured) -> Path | None:
    """Write the exported draft and its card into a folder; None if no trained draft was exported.

    Args:
        folder: where they go.
        recipe: what was run.
        rows: every artifact of the run.
        measured: the benchmark's figures.

    Raises:
        ArtifactInvalid: a file of the export is missing or altered.
    """
    exports = {row.label.removeprefix(_EXPORT): row.artifact for row in rows if row.label.startswith(_EXPORT)}
    if not isinstance(exports.get(_TRAINED), Shards):
        return None
    for name, artifact in exports.items():
        if name != "untrained" and isinstance(artifact, Shards):
            for shard in artifact.shards:
                place(artifact.file(shard.part), folder / ("" if name == _TRAINED else name) / Path(shard.path).name)
    write_bytes(folder / CARD, model_card(recipe, rows, measured).encode())
    return folder


def place(source: Path, target: Path) -> None:
    """Make a file appear at another path, whole, in place of what was there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        if source.suffix != _WEIGHTS:  # small files are edited, and must not change in the store
            raise OSError
        os.link(source, temporary)
    except OSError:  # also another disk, or one without hard links
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)
    temporary.unlink(missing_ok=True)  # is left where both were links to one file


def model_card(recipe: Recipe, rows: Sequence[StepRow], measured: Measured) -> str:
    """The card in the Hugging Face Hub's format."""
    found = {row.label: row for row in rows}
    target = _facts(found, "target").get("model", recipe.target.model)
    sections = [
        _front_matter(recipe, target),
        f"# EAGLE-3 draft for {target}",
        f"A draft model for speculative decoding, made by eyas from the recipe `{recipe.name}`: one small layer drafts "
        "the target's next tokens, and the target verifies them, so that its answers stay the same.",
        "## Serve it",
        _serving(recipe, target),
        "## What it accepts",
        "Acceptance length is 1 + accepted drafts per verify step of the target, with chains of "
        f"{recipe.benchmark.chain} drafted tokens and a 95 % bootstrap interval over prompts that were kept out of "
        "training.",
        grid(ACCEPTANCE_HEADINGS, (acceptance_cells(a, measured) for a in measured.overall)),
        grid(
            ("dataset", "temperature", "acceptance length", "95 % interval", "prompts"),
            (
                (
                    str(a.dataset),
                    f"{a.temperature:g}",
                    f"{a.length:.3f}",
                    f"{a.low:.3f} to {a.high:.3f}",
                    str(a.prompts),
                )
                for a in measured.by_dataset
                if a.drafter == _TRAINED
            ),
        ),
        "## What it was trained on",
        *_data(recipe, found),
        "## How it was made",
        *_lineage(recipe, found, rows),
    ]
    return "\n\n".join(sections) + "\n"


def vocabulary_grid(found: Mapping[str, StepRow]) -> str:
    """Coverage of the draft vocabulary and the probability that it loses, per dataset; empty without a vocabulary."""
    if not (row := found.get("vocabulary")) or not isinstance(row.artifact, Shards):
        return ""
    mass = {one["dataset"]: one for one in _table(found.get("lost-mass"))}
    cells = []
    for one in row.artifact.table("coverage").to_pylist():
        lost = mass.get(one["dataset"]) if one["split"] == "heldout" else None
        cells.append(
            (
                one["dataset"],
                one["split"],
                f"{one['tokens']:,}",
                f"{one['covered'] / one['tokens']:.2%}",
                f"{lost['lost_mass']:.2%}" if lost else "",
                f"{lost['best_outside'] / lost['positions']:.2%}" if lost else "",
            )
        )
    return grid(("dataset", "split", "answer tokens", "covered", "lost probability", "likeliest token outside"), cells)


def _table(row: StepRow | None) -> list[dict[str, Any]]:
    return row.artifact.table.to_pylist() if row is not None and isinstance(row.artifact, Rows) else []


def _facts(found: Mapping[str, StepRow], label: str) -> dict[str, Any]:
    return found[label].artifact.facts if label in found else {}


def _front_matter(recipe: Recipe, target: str) -> str:
    fields: dict[str, Any] = {
        "base_model": target,
        "tags": ["eagle3", "speculative-decoding", "draft-model"],
        "library_name": "transformers",
    }
    if recipe.export.licence:
        fields["license"] = recipe.export.licence
    hub = [d.source.removeprefix("hub:") for d in recipe.datasets if d.split == "train" and d.source.startswith("hub:")]
    if hub:
        fields["datasets"] = ["/".join(source.split("/")[:2]) for source in hub]
    return f"---\n{yaml.safe_dump(fields, sort_keys=True).strip()}\n---"


def _serving(recipe: Recipe, target: str) -> str:
    drafted = recipe.benchmark.chain
    commands = {
        "sglang": f"python -m sglang.launch_server --model-path {target} --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path THIS_FOLDER --speculative-num-steps {drafted} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {drafted + 1}",
        "vllm": f"vllm serve {target} --speculative-config "
        f'\'{{"method": "eagle3", "model": "THIS_FOLDER", "num_speculative_tokens": {drafted}}}\'',
    }
    lines = "\n".join(commands[engine] for engine in recipe.export.engines)
    others = ", ".join(f"`{layout}/`" for layout in recipe.export.layouts)
    more = f"\n\nThe same draft in other layouts: {others}." if others else ""
    return f"```sh\n{lines}\n```{more}"


def _data(recipe: Recipe, found: Mapping[str, StepRow]) -> Iterator[str]:
    corpus = _facts(found, "corpus")
    yield (
        f"{corpus.get('sequences', 'an unknown number of')} sequences, one per answer of the target, generated anew "
        f"with {recipe.generation.engine} at temperature {recipe.generation.temperature:g}; a dataset's own answers "
        "were not used."
    )
    rows = [
        (d.name, f"`{d.source}`", d.revision[:12], d.licence or "not stated")
        for d in recipe.datasets
        if d.split == "train"
    ]
    yield grid(("dataset", "source", "revision", "licence"), rows)
    licence = recipe.export.licence or "not stated"
    yield (
        f"Licence of the draft: {licence}. It was trained on the target's answers: the target's own licence holds for "
        "what may be done with it, beside those of the prompts."
    )
    if table := vocabulary_grid(found):
        size = _facts(found, "vocabulary").get("size", 0)
        yield f"The draft can propose {size:,} tokens. What they cover of the answers, and what they lose:"
        yield table


def _lineage(recipe: Recipe, found: Mapping[str, StepRow], rows: Sequence[StepRow]) -> Iterator[str]:
    trained, initial = _facts(found, "train"), _facts(found, "initialise")
    start = f"the draft `{initial['parent']}`" if initial.get("parent") else "fresh weights"
    yield f"{trained.get('steps', 0):,} optimiser steps from {start}; recipe `{recipe.fingerprint()}`."
    if reading := _facts(found, "reading"):
        lengths = ", ".join(f"{name} {length:.3f}" for name, length in reading["lengths"].items())
        yield f"What the parent's layer ids mean, by simulated acceptance: {lengths}; {reading['reading']} was kept."
    yield grid(
        ("artifact", "digest", "rows"),
        ((row.label, f"`{row.artifact.digest()[:16]}`", f"{row.rows:,}") for row in rows),
    )
    told = {name: value for name, value in recipe.model_dump(mode="json").items() if name not in _NOT_TOLD}
    told["generation"]["serving"].pop("endpoints", None)
    yield f"```yaml\n{yaml.safe_dump(told, sort_keys=False).strip()}\n```"
