"""States from an SGLang server that was started with --enable-return-aux-hidden-states.

It gives the three auxiliary states, and not the last one with them: the teacher is what it says of the likeliest
tokens. Rows are lost without a word when a prefix is found in its radix cache or a prefill is cut into chunks, so every
sequence is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from schemas.errors import EngineError
from schemas.extraction import ExtractionSpec
from tasks.states.asking import StateServer, in_order
from tasks.states.source import AUX_STATES, Asked, Captured, TopTokens
from tasks.target.layers import default_aux_layers, layer_ids, sglang_rule

_FLAGS = (
    "--enable-return-aux-hidden-states",
    "--speculative-algorithm",  # names the convention of the capture; no draft is loaded
    "EAGLE3",
    "--disable-radix-cache",
    "--chunked-prefill-size",
    "-1",
)


def server_arguments(layers: Sequence[int], model_type: str, num_layers: int) -> list[str]:
    """The arguments that make an SGLang server give the outputs of these layers."""
    flags: list[str] = list(_FLAGS)
    if list(layers) != list(default_aux_layers(num_layers)):
        ids = layer_ids(layers, sglang_rule(model_type), num_layers)
        flags += ["--return-aux-hidden-state-layer-ids", *map(str, ids)]
    return flags


class SglangSource:
    """An SGLang server that gives the three auxiliary states, and its likeliest tokens."""

    def __init__(self, server: StateServer, layers: Sequence[int], facts: dict[str, Any], spec: ExtractionSpec) -> None:
        """Ask the server how it was started.

        Args:
            layers: the auxiliary layers, 0-based.
            facts: the target's model_type, num_layers and hidden_size.

        Raises:
            EngineError: it was not started so that it gives all states of the layers wanted.
        """
        self._server, self._spec = server, spec
        self._hidden = facts["hidden_size"]
        _check_settings(server.ask("/server_info"), layers, facts, server.url)

    def states(self, sequences: Sequence[Asked]) -> Iterator[list[Captured]]:
        """See StateSource."""
        for found in in_order(self._ask, enumerate(sequences), self._spec.concurrency):
            yield [found]

    def greedy(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """See StateSource."""
        return list(in_order(lambda ids: self._greedy(ids, max_tokens), prompts, self._spec.concurrency))

    def _greedy(self, ids: Sequence[int], max_tokens: int) -> list[int]:
        return list(self._generate(ids, max_tokens, {})["output_ids"])

    def _ask(self, item: tuple[int, Asked]) -> Captured:
        place, asked = item
        wanted = {
            "return_hidden_states": True,
            "return_logprob": True,
            "logprob_start_len": asked.taught_from,
            "top_logprobs_num": self._spec.teacher_top_k,
        }
        meta = self._generate(asked.ids, 1, wanted)["meta_info"]
        states = meta.get("hidden_states")
        if not states:
            raise EngineError(f"the server {self._server.url} returned no hidden states")
        aux = torch.tensor(states[0], dtype=torch.float32)
        if aux.shape != (len(asked.ids), AUX_STATES * self._hidden):
            raise EngineError(
                f"the server {self._server.url} gave states of the shape {list(aux.shape)} for sequence {asked.name} "
                f"with {len(asked.ids)} ids, {AUX_STATES} of {self._hidden} per id were expected. Start it with "
                "--disable-radix-cache and --chunked-prefill-size -1: otherwise rows are left out"
            )
        return Captured(place, aux.to(torch.bfloat16), None, self._likeliest(asked, meta))

    def _likeliest(self, asked: Asked, meta: dict[str, Any]) -> TopTokens:
        """The likeliest tokens after each id from `taught_from` on: of the input's next ids, and of the new one."""
        of_input = [row for row in meta.get("input_top_logprobs") or [] if row]
        rows = [*of_input, *(meta.get("output_top_logprobs") or [])[:1]]
        wanted, k = len(asked.ids) - asked.taught_from, self._spec.teacher_top_k
        if len(rows) < wanted or any(len(row) < k for row in rows):
            raise EngineError(
                f"the server {self._server.url} gave likeliest tokens for {len(rows)} positions of sequence "
                f"{asked.name}, {k} of each of {wanted} were asked for"
            )
        table = torch.tensor([[pair[:2] for pair in row[:k]] for row in rows[-wanted:]], dtype=torch.float64)
        return TopTokens(table[..., 1].to(torch.int32), _float(table[..., 0]))

    def _generate(self, ids: Sequence[int], max_tokens: int, wanted: dict[str, Any]) -> dict[str, Any]:
        body = {"input_ids": list(ids), "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0}}
        return self._server.ask("/generate", body | wanted)


def _float(values: Tensor) -> Tensor:
    return values.to(torch.float32)


def _check_settings(found: dict[str, Any], layers: Sequence[int], facts: dict[str, Any], url: str) -> None:
    """Refuse a server that would leave out rows, or gives other layers."""
    num_layers = facts["num_layers"]
    ids = found.get("return_aux_hidden_state_layer_ids")
    default = list(default_aux_layers(num_layers)) == list(layers)
    wanted = layer_ids(layers, sglang_rule(facts["model_type"]), num_layers)
    faults = [
        (not found.get("enable_return_aux_hidden_states"), "gives no auxiliary states"),
        (not found.get("disable_radix_cache"), "has a radix cache, whose prefixes have no states"),
        ((found.get("chunked_prefill_size") or -1) > 0, "cuts prefills into chunks, of which only the last has states"),
        (not (ids == wanted or (ids is None and default)), f"captures layers {ids or 'by default'}, not {wanted}"),
    ]
    if told := [text for is_wrong, text in faults if is_wrong]:
        arguments = " ".join(server_arguments(layers, facts["model_type"], num_layers))
        raise EngineError(f"the SGLang server {url} {'; it '.join(told)}: start it with {arguments}")
