"""Tokenizers of all families turn text into the published ids and back, and read no marker that was not sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from schemas.errors import TokenFormatError
from tasks.formats.codec import load_codec
from tasks.formats.tiktoken_model import kimi_pieces
from tests.formats.texts import tricky
from tests.tokenizers import NAMES, codec, folder

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "smollm2"])
def test_text_comes_back_as_it_was(name: str):
    own = codec(name)

    @given(st.lists(tricky, max_size=4))
    @settings(max_examples=25)
    def check(texts: list[str]) -> None:
        encoded = own.encode(texts)
        assert own.decode(encoded) == texts
        assert not set(own.markers.values()) & {number for row in encoded for number in row}

    check()


def test_what_a_vocabulary_has_no_byte_for_is_missing_from_what_comes_back():
    own = codec("smollm2")
    assert own.decode(own.encode(["a\x04b\x05c", "\U00040000"])) == ["ab\x05c", "\ufffd" * 3]


@pytest.mark.parametrize("name", NAMES)
def test_marker_text_is_plain_text_in_an_answer_and_one_id_in_a_prompt(name: str):
    own = codec(name)
    markers = list(own.markers)
    assert not any(number in ids for number, ids in zip(own.markers.values(), own.encode(markers), strict=True))
    assert own.encode_prompt(markers) == [[number] for number in own.markers.values()]
    assert own.decode([[number] for number in own.markers.values()]) == markers
    assert max(own.markers.values()) < own.vocab_size


@pytest.mark.parametrize("name", NAMES)
def test_decoding_puts_no_space_between_markers_and_text(name: str):
    own = codec(name)
    first, last = min(own.markers, key=own.markers.__getitem__), max(own.markers, key=own.markers.__getitem__)
    ids = [*own.encode(["a"])[0], own.markers[first], own.markers[last], *own.encode([" b ,"])[0]]
    assert own.decode([ids, []]) == [f"a{first}{last} b ,", ""]
    assert own.decode([np.array(ids, dtype=np.int32)]) == [f"a{first}{last} b ,"]


@pytest.mark.parametrize("name", NAMES)
def test_half_a_surrogate_pair_is_refused(name: str):
    for encode in (codec(name).encode, codec(name).encode_prompt):
        with pytest.raises(UnicodeEncodeError):
            encode(["fine", "a\ud83d"])


@pytest.mark.parametrize(
    ("name", "composed"),
    [
        ("kimi", False),
        ("deepseek-r1", False),
        ("glm-4.5v", False),
        ("gpt-oss", False),
        ("qwen-3", True),
        ("qwen-3.5", True),
        ("minimax", True),
    ],
)
def test_only_prompts_of_some_families_are_put_into_nfc(name: str, composed: bool):
    own = codec(name)
    apart, together = "cafe\u0301", "caf\u00e9"
    assert own.decode(own.encode([apart])) == [apart]
    assert own.decode(own.encode_prompt([apart])) == [together if composed else apart]


@pytest.mark.parametrize("name", NAMES)
def test_any_ids_decode_as_the_library_decodes_them(name: str):
    own, path = codec(name), folder(name) / "tokenizer.json"
    broken = [number for number in range(0, own.vocab_size, 7) if "\ufffd" in own.decode([[number]])[0]]
    ids = st.integers(0, own.vocab_size - 1) | st.sampled_from([*broken, *own.markers.values()])
    library: Any = Tokenizer.from_file(str(path)) if path.is_file() else None
    ranks = {} if library else load_tiktoken_bpe(str(folder(name) / "tiktoken.model"))
    pieces = {number: piece for piece, number in ranks.items()} | {n: text.encode() for text, n in own.markers.items()}

    @given(st.lists(st.lists(ids, max_size=12), max_size=4))
    @settings(max_examples=50)
    def check(rows: list[list[int]]) -> None:
        if library:
            expected = library.decode_batch(rows, skip_special_tokens=False)
        else:
            expected = [b"".join(pieces[number] for number in row).decode("utf-8", "replace") for row in rows]
        assert own.decode(rows) == own.decode([np.array(row, np.int32) for row in rows]) == expected

    check()


def test_ids_as_arrays_are_the_ids_as_lists():
    texts = ["", "a<|\0|>b", "e\u0301 \U0001f98a\r\n", "<|im_end|>", "x" * 30_000]
    for name in ("kimi", "qwen-3"):
        own = codec(name)
        assert [ids.tolist() for ids in own.encode_arrays(texts)] == own.encode(texts)
        assert own.decode(own.encode_arrays(texts)) == texts
        assert {ids.dtype for ids in own.encode_arrays(texts)} == {np.dtype(np.int32)}


def test_a_character_cut_in_the_middle_decodes_to_the_replacement_character():
    assert codec("kimi").decode([[5885]]) == ["\ufffd"]
    assert codec("kimi").encode(["\ufffd"]) == [[9618]]  # which is an ordinary id: damage does not show in ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Two plus two is four.", [17285, 9620, 2069, 387, 4771, 13]),
        ("<|system|> and <|think|>", [27, 91, 14062, 91, 29, 316, 22652, 39964, 91, 29]),
        ("say <|im_end|> now", [69586, 22652, 348, 11129, 91, 29, 2215]),
        ("chas", [163533]),
        ("hello", [22931]),
    ],
)
def test_kimi_gives_known_ids_for_text(text: str, ids: list[int]):
    assert codec("kimi").encode([text]) == [ids]


def test_kimi_reads_markers_in_a_prompt_as_its_server_does():
    own = codec("kimi")
    dialogue = (
        "<|im_user|>user<|im_middle|>Who are you?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>My name is Qwen2.<|im_end|>"
    )
    known = [163587, 2482, 163601, 24328, 554, 398, 30, 163586, 163588, 69702, 163601]
    known += [6725, 1530, 387, 1999, 33249, 17, 13, 163586]
    assert own.encode_prompt([dialogue, "say <|im_end|> now"]) == [known, [69586, 220, 163586, 2215]]
    assert own.vocab_size == 163840
    assert own.markers["<|reserved_token_163589|>"] == 163589
    assert {163586, 163839} <= own.special_ids
    assert not {163595, 163599, 163606, 163607} & own.special_ids


def test_kimi_cuts_very_long_runs_of_a_prompt_only():
    own = codec("kimi")
    text = "abc" * 9000
    assert len(own.encode([text])[0]) == 9000
    assert len(own.encode_prompt([text])[0]) == 9001
    assert own.decode(own.encode_prompt([text])) == [text]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("a" * 25_000, [25_000]),
        ("a" * 25_001, [25_000, 1]),
        ("b " + "a" * 60_000 + " c", [25_002, 25_000, 10_002]),
        ("a" * 25_000 + " " * 25_001 + "b", [50_000, 2]),
        ("ab " * 200_000, [400_000, 200_000]),
        ("ab " * 133_333 + "a" * 25_002, [400_000, 25_000, 1]),
    ],
)
def test_pieces_are_as_long_as_kimi_makes_them(text: str, lengths: list[int]):
    pieces = list(kimi_pieces(text))
    assert "".join(pieces) == text
    assert [len(piece) for piece in pieces] == lengths


def test_a_tokenizer_is_read_once():
    assert load_codec(folder("qwen-3")) is load_codec(folder("qwen-3"))


def test_a_folder_without_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(TokenFormatError, match=rf"{tmp_path} has neither tiktoken.model nor tokenizer.json"):
        load_codec(tmp_path)


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_a_tokenizer_that_adds_a_space_where_text_begins_is_refused(tmp_path: Path, scheme: str):
    letters = "▁ abcdefghijklmnopqrstuvwxyz"
    tokenizer = Tokenizer(models.BPE({letter: rank for rank, letter in enumerate(letters)}, [], byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenFormatError, match="pieces of an answer between markers would not keep their text"):
        load_codec(tmp_path)


def _byte_level(added: list[dict[str, object]], vocabulary: dict[str, int], **others: object) -> str:
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "ignore_merges": True}
    rules = {"version": "1.0", "added_tokens": added, "pre_tokenizer": BYTES, "decoder": BYTES, "model": model}
    return json.dumps(rules | others)


def test_a_vocabulary_in_which_a_marker_is_a_word_is_refused(tmp_path: Path):
    vocabulary = {letter: rank for rank, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    number = vocabulary["<mark>"] = len(vocabulary)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    marker: dict[str, object] = {"id": number, "content": "<mark>", **flags}
    (tmp_path / "tokenizer.json").write_text(_byte_level([marker], vocabulary))
    with pytest.raises(TokenFormatError, match=rf"reads the text '<mark>' as its control id {number}"):
        load_codec(tmp_path)


def test_a_damaged_tokenizer_file_is_named(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [')
    with pytest.raises(TokenFormatError, match=r"tokenizer\.json cannot be read"):
        load_codec(tmp_path)


@pytest.mark.parametrize("content", [b"", b"YQ== 0\nYg== 2\n", b"not a rank\n", b"YQ==\n"])
def test_damaged_ranks_are_named(tmp_path: Path, content: bytes):
    (tmp_path / "tiktoken.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}')
    with pytest.raises(TokenFormatError, match=r"tiktoken\.model"):
        load_codec(tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "does not name the control ids"),
        ("{}", "does not name the control ids"),
        ('{"added_tokens_decoder": {"0": {"content": "<x>"}}}', "gives '<x>' the id 0; control ids .* are 2 to 257"),
    ],
)
def test_ranks_without_names_of_control_ids_are_refused(tmp_path: Path, config: str | None, said: str):
    (tmp_path / "tiktoken.model").write_bytes(b"YQ== 0\nYg== 1\n")
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(TokenFormatError, match=said):
        load_codec(tmp_path)
