"""Simulated acceptance by dataset and by context length."""

from __future__ import annotations

import torch

from tasks.train.simulated import SequenceChains
from tasks.train.survey import context_ranges, simulated_rows


def chains(name: str, first: int, hits: str) -> SequenceChains:
    return SequenceChains(name, first, [torch.tensor([hit == "x" for hit in hits])])


def test_ranges_double() -> None:
    assert list(context_ranges(600)) == [range(128), range(128, 256), range(256, 512), range(512, 1024)]
    assert list(context_ranges(128)) == [range(128)]


def test_every_chain_is_in_its_dataset_and_its_range() -> None:
    found = [chains("a", 126, "x.xx"), chains("b", 300, ".."), chains("c", 10, "")]
    rows = simulated_rows(found, {"a": "code", "b": "general", "c": "general"}, 200, 0)
    counts = {(row["group"], row["name"]): (row["survived"], row["chains"], row["sequences"]) for row in rows}
    assert counts == {
        ("all", ""): ([3], [6], 2),  # an answer of one token has no chain
        ("dataset", "code"): ([3], [4], 1),
        ("dataset", "general"): ([0], [2], 1),
        ("context", "0 to 127"): ([1], [2], 1),
        ("context", "128 to 255"): ([2], [2], 1),
        ("context", "256 to 511"): ([0], [2], 1),
    }
    assert rows[0]["length"] == 1.5
    assert rows[0]["low"] <= 1.5 <= rows[0]["high"]
