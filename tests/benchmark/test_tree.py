"""A tree of drafts changes how many steps there are, never what comes out."""

from __future__ import annotations

import pytest
import torch

from tasks.benchmark.batch import Batch
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import EagleDrafter
from tasks.benchmark.tree import Tree, TreeDrafter, decode_tree
from tasks.target.model import Target
from tests.benchmark.models import make_draft, make_prompts, make_settings, make_target
from tests.benchmark.test_decode import SMALL, excess_of, greedy, recompute

VOCAB = 23


@pytest.fixture(scope="module")
def target() -> Target:
    return make_target(VOCAB)


def drafter(target: Target, top_k: int, nodes: int) -> TreeDrafter:
    return TreeDrafter(make_draft(VOCAB, list(range(0, VOCAB, 2))), target, top_k, nodes)


@pytest.mark.parametrize(("top_k", "nodes"), [(2, 5), (4, 8), (4, 20)])
@pytest.mark.parametrize("end_ids", [(), (3, 11)])
def test_greedy_output_is_that_of_plain_greedy_decoding(
    target: Target, top_k: int, nodes: int, end_ids: tuple[int, ...]
) -> None:
    prompts, settings = make_prompts(12, VOCAB), make_settings(end_ids=end_ids)
    answers = decode_tree(target, drafter(target, top_k, nodes), prompts, settings)
    assert [a.output_ids for a in answers] == [greedy(target, prompt, settings) for prompt in prompts]
    assert sum(a.accepted for a in answers) > 0


def test_a_tree_without_branches_is_a_chain(target: Target) -> None:
    prompts, settings = make_prompts(12, VOCAB), make_settings(end_ids=(3,))
    tree = decode_tree(target, drafter(target, 1, 4), prompts, settings)
    draft = make_draft(VOCAB, list(range(0, VOCAB, 2)))
    chain = decode(target, EagleDrafter(draft, target), "trained", prompts, settings)
    assert sum(a.accepted for a in chain) > 0
    assert [(a.verify_steps, a.drafted, a.accepted_by_position) for a in tree] == [
        (a.verify_steps, a.drafted, a.accepted_by_position) for a in chain
    ]


def test_more_branches_accept_more(target: Target) -> None:
    prompts, settings = make_prompts(24, VOCAB), make_settings()
    kept = [
        sum(a.accepted for a in decode_tree(target, drafter(target, top_k, nodes), prompts, settings))
        for top_k, nodes in ((1, 4), (3, 12), (6, 40))
    ]
    assert kept[0] < kept[1] < kept[2]


def test_a_tree_is_the_likeliest_guesses_of_a_full_search(target: Target) -> None:
    """Of branches widened without limit, with every draft row computed anew."""
    found: list[Tree] = []

    class Watched(TreeDrafter):
        def grow(self, batch: Batch) -> Tree:
            found.append(super().grow(batch))
            return found[-1]

    draft = make_draft(VOCAB, list(range(0, VOCAB, 2)))
    watched = Watched(draft, target, 12, 9)  # as wide as the draft's vocabulary: nothing is cut before the end
    (prompt,) = make_prompts(1, VOCAB)
    decode_tree(target, watched, [prompt], make_settings(max_tokens=2, chain=2))
    known = torch.tensor(greedy(target, prompt, make_settings(max_tokens=1)))
    ids = torch.cat([torch.tensor(prompt.ids), known])
    ways: dict[tuple[int, ...], float] = {}
    for first in range(12):
        token = draft.target_ids()[first]
        logits = recompute(watched, ids, torch.stack([token, token]))
        odds = logits.softmax(-1)
        ways[(int(token),)] = float(odds[0, first])
        for second in range(12):
            ways[(int(token), int(draft.target_ids()[second]))] = float(odds[0, first] * odds[1, second])
    wanted = sorted(ways, key=lambda way: -ways[way])[:8]
    tree = found[0]
    paths = []
    for node in range(1, 9):
        way = [int(tree.tokens[0, node])]
        above = int(tree.parents[0, node])
        while above > 0:
            way.insert(0, int(tree.tokens[0, above]))
            above = int(tree.parents[0, above])
        assert len(way) == int(tree.depths[0, node])
        paths.append(tuple(way))
    assert sorted(paths) == sorted(wanted)


def test_sampled_output_has_the_distribution_of_the_target() -> None:
    small = make_target(SMALL, seed=3, spread=0.25)
    tree = TreeDrafter(make_draft(SMALL, [0, 1, 2, 4], sharpness=2), small, 2, 6)
    assert excess_of(small, lambda prompts, settings: decode_tree(small, tree, prompts, settings)) < 4
