"""Trees of drafted tokens: who follows whom, who sees whom, and how far greedy verification accepts.

A tree of n nodes per request, node 0 the last accepted token. next_token and next_sibling are links, -1 is none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

_ONLY_NEW = 1  # the mask is over the new tokens alone


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_mode: Any,
) -> None:
    """Fill links, mask (requests, nodes, nodes) and positions (requests, nodes) from the selected candidates."""
    if int(mask_mode) != _ONLY_NEW:
        raise NotImplementedError(f"tree mask mode {mask_mode}")
    requests = lengths.shape[0]
    mask = tree_mask.view(-1)[: requests * nodes * nodes].view(requests, nodes, nodes)
    places = positions.view(-1)[: requests * nodes].view(requests, nodes)
    for request in range(requests):
        chosen = selected[request].tolist()
        above = _parents(chosen, parents[request].tolist() if parents.numel() else [], topk)
        index[request, :nodes] = index.new_tensor(range(request * nodes, (request + 1) * nodes))
        for node in range(nodes - 1, 0, -1):
            if (parent := above[node - 1]) is None:
                continue
            if (first := int(next_token[request, parent])) != -1:
                next_sibling[request, node] = first
            next_token[request, parent] = node
        mask[request] = 0
        mask[request, :, 0] = 1
        for node in range(nodes):
            current: int | None = node
            level = 0
            while current and level < depth:
                mask[request, node, current] = 1
                level += 1
                current = above[current - 1]
            places[request, node] = int(lengths[request]) + level


def _parents(chosen: list[int], parents: list[int], topk: int) -> list[int | None]:
    """The parent node of each node from 1 on; None for one whose parent was not selected."""
    found: list[int | None] = []
    for candidate in chosen:
        group = candidate // topk
        if group == 0:
            found.append(0)
        else:
            found.append(chosen.index(parents[group]) + 1 if parents[group] in chosen else None)
    return found


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the target's own choices: what is accepted, how many, and the token after.

    SGLang passes all by name, in this spelling.
    """
    choices = target_predict.view(-1)
    for request in range(candidates.shape[0]):
        last = int(retrive_index[request, 0])
        accept_index[request, 0] = last
        node = accepted = 0
        for _ in range(1, accept_index.shape[1]):
            choice = int(choices[last])
            node = int(retrive_next_token[request, node])
            while node != -1 and int(candidates[request, node]) != choice:
                node = int(retrive_next_sibling[request, node])
            if node == -1:
                break
            predicts[last] = choice
            accepted += 1
            last = int(retrive_index[request, node])
            accept_index[request, accepted] = last
        accept_token_num[request] = accepted
        predicts[last] = choices[last].to(predicts.dtype)
