"""Texts that tokenizers and parsers get wrong."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = (
    "\r\n",
    "\n\n",
    " ",
    "\t",
    "\0",
    "cafe\u0301",
    "\u212b",
    "\u1112\u1161\u11ab",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e8\U0001f1ed",
    "\ufffd",
    "\ufeff",
    "中文abc",
    "I'll",
    "12345",
    "<think>",
    "</think>",
    "<|im_end|>",
    "<tool_call>",
    "<|tool_calls_section_begin|>",
    "<|system|>",
    "</",
    "<|",
)

_ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
tricky = st.lists(st.sampled_from(PIECES) | _ANY).map("".join)
