"""What a parent draft changes in `build_draft`: the vocabulary, the layers and the first weights are its own.

No postponed annotations, as in flows/build_draft.py.
"""

from collections.abc import Mapping
from typing import Any

from prefect.futures import PrefectFuture

from flows.steps import Steps
from schemas.errors import DraftError
from schemas.extraction import ExtractionSpec
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Shards
from tasks.corpus.task import adopt_vocabulary, build_vocabulary, sample_sequences
from tasks.draft.checkpoint import read_fields
from tasks.draft.config import DraftConfig
from tasks.draft.engines import misread_by, require_engines
from tasks.draft.place import locate_parent
from tasks.extract.task import extract_states
from tasks.target.layers import default_aux_layers
from tasks.train.initialise import draft_config
from tasks.train.parent import adopt_parent
from tasks.train.task import initialise_draft
from tasks.train.warm_start import choose_reading, initialise_from_parent


def adopted_parent(steps: Steps, recipe: Recipe, target: Shards) -> Shards | None:
    """The recipe's parent draft, or None for a fresh one."""
    spec = recipe.draft.parent
    if not spec.model:
        return None
    return steps.submit(adopt_parent, "parent", spec=spec, sources=locate_parent(spec), target=target).result()


def check_draft(recipe: Recipe, target: Mapping[str, Any], parent: Shards | None) -> None:
    """Refuse a draft that could not be exported as the recipe wants it, before anything is spent on it.

    Args:
        target: the target's facts.
        parent: what `adopted_parent` gave.

    Raises:
        DraftError: an engine would misread it, or the recipe's shape is not the parent's.
    """
    layers = recipe.extraction.aux_layers or list(default_aux_layers(target["num_layers"]))
    if parent is None:
        config = draft_config(target, recipe.draft, recipe.vocabulary.size, layers)
        return require_engines(config, recipe.export.engines)
    config = DraftConfig.from_checkpoint(read_fields(parent.file("config")))
    for field in ("hidden_size", "head_dim", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        wanted, found = getattr(recipe.draft, field), getattr(config, field)
        if wanted not in (0, found):
            raise DraftError(
                f"draft.{field} is {wanted}, the parent's is {found}: leave it out, or give another parent"
            )
    if parent.facts["full_vocabulary"]:
        config = config.model_copy(update={"draft_vocab_size": recipe.vocabulary.size})
    readings = [recipe.extraction.aux_layers] if recipe.extraction.aux_layers else parent.facts["readings"].values()
    faults = [_misread(config, reading, recipe) for reading in readings]
    if all(faults):  # one that is right is enough: which one is kept is found out later
        raise DraftError(f"the parent of this draft cannot be served once it is trained: {faults[0]}")
    return None


def _misread(config: DraftConfig, layers: list[int], recipe: Recipe) -> str:
    shape = config.model_copy(update={"aux_layers": tuple(layers)})
    return next(filter(None, (misread_by(shape, engine) for engine in recipe.export.engines)), "")


def submit_vocabulary(
    steps: Steps, recipe: Recipe, target: Shards, corpus: Shards, parent: Shards | None
) -> PrefectFuture[Shards]:
    """The parent's vocabulary, or one chosen from the corpus if there is no parent or it has the target's whole one."""
    if parent is not None and not parent.facts["full_vocabulary"]:
        return steps.submit(adopt_vocabulary, "vocabulary", target=target, corpus=corpus, parent=parent)
    return steps.submit(build_vocabulary, "vocabulary", target=target, corpus=corpus, spec=recipe.vocabulary)


def extraction_for(
    steps: Steps, recipe: Recipe, corpus: Shards, parent: Shards | None, shared: dict[str, Any]
) -> ExtractionSpec:
    """Extraction at the layers that feed the parent; where its ids can mean two things, both are tried on a sample.

    Args:
        shared: what every extraction is given, with the recipe's extraction as `spec`.
    """
    spec: ExtractionSpec = shared["spec"]
    if parent is None or spec.aux_layers:
        return spec
    readings: dict[str, list[int]] = parent.facts["readings"]
    layers = next(iter(readings.values()))
    if len(readings) > 1:
        count = recipe.draft.parent.probe_sequences
        sample = steps.submit(sample_sequences, "sample", corpus=corpus, count=count).result()
        states = {
            reading: steps.submit(
                extract_states,
                f"extract sample as {reading}",
                corpus=sample,
                **(shared | {"spec": _at(spec, tried, shared["target"])}),
            )
            for reading, tried in readings.items()
        }
        chosen = steps.submit(
            choose_reading,
            "reading",
            target=shared["target"],
            parent=parent,
            states=states,
            spec=recipe.training,
            target_spec=recipe.target,
            compute=recipe.compute,
        )
        layers = chosen.result().facts["aux_layers"]
        if fault := _misread(DraftConfig.from_checkpoint(read_fields(parent.file("config"))), layers, recipe):
            raise DraftError(f"the parent reads the outputs of layers {layers}, and once it is trained: {fault}")
    return _at(spec, layers, shared["target"])


def _at(spec: ExtractionSpec, layers: list[int], target: Shards) -> ExtractionSpec:
    """Extraction at these layers; the default ones stay unnamed, so that states which are there already are found."""
    is_default = layers == list(default_aux_layers(target.facts["num_layers"]))
    return spec if is_default else spec.model_copy(update={"aux_layers": layers})


def submit_first_weights(
    steps: Steps, recipe: Recipe, parent: Shards | None, shared: dict[str, Any]
) -> PrefectFuture[Shards]:
    """The weights that training begins with: the parent's, once they have proven themselves, or fresh ones."""
    if parent is None:
        return steps.submit(initialise_draft, "initialise", spec=recipe.draft, **shared)
    spec, training = recipe.draft.parent, recipe.training
    return steps.submit(initialise_from_parent, "initialise", parent=parent, spec=spec, training=training, **shared)
