"""Formats by name, and which one a tokenizer and template belong to."""

from __future__ import annotations

import pytest

from schemas.errors import TokenFormatError
from tasks.formats.registry import FORMATS, bind, recognise
from tests.kimi_templates import TEMPLATES
from tests.tokenizers import codec, folder


@pytest.mark.parametrize("name", TEMPLATES)
def test_kimi_is_recognised_by_its_template(name: str):
    assert recognise(codec("kimi"), TEMPLATES[name]) == name
    assert recognise(codec(name), (folder(name) / "chat_template.jinja").read_text()) == name


def test_what_is_not_known_is_plain():
    assert recognise(codec("smollm2"), "{{ messages[0].content }}") == "plain"
    assert recognise(codec("kimi"), "{{ messages[0].content }}") == "plain"


def test_an_unknown_name_is_answered_with_all_there_are():
    with pytest.raises(TokenFormatError, match=r"no token format 'kimi-k9'; there are .*kimi-k2\.5.*plain"):
        bind("kimi-k9", codec("kimi"))


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"plain"}))
def test_a_tokenizer_of_no_family_is_refused_with_the_marker_and_its_id(name: str):
    with pytest.raises(TokenFormatError, match=rf"target's tokenizer; it is \d+ in the format {name}"):
        bind(name, codec("smollm2"))


@pytest.mark.parametrize(("name", "other"), [("kimi-k2.5", "qwen-3"), ("qwen3", "kimi"), ("qwen3", "qwen-3.5")])
def test_a_tokenizer_of_another_family_is_refused(name: str, other: str):
    with pytest.raises(TokenFormatError, match=rf"in the format {name}"):
        bind(name, codec(other))
