"""What is captured is what the model computed, from any number of threads at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from schemas.errors import TargetError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.target.model import Target, load_target

LAYERS = (1, 2, 3)


def some_ids(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(0, 49152, shape, generator=torch.Generator().manual_seed(seed))


def reference(target: Target, ids: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        states = target.decoder(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1] for layer in LAYERS], dim=-1), states[-1]


def test_captured_states_are_bit_for_bit_those_of_transformers(tiny_loaded: Target) -> None:
    ids = some_ids(0, (3, 12))
    aux, last = tiny_loaded.capture(ids, aux_layers=LAYERS)
    wanted_aux, wanted_last = reference(tiny_loaded, ids)
    assert torch.equal(aux, wanted_aux)
    assert torch.equal(last, wanted_last)


def test_lm_head_of_the_last_state_gives_the_model_s_own_scores(tiny_loaded: Target) -> None:
    ids = some_ids(1, (2, 9))
    _, last = tiny_loaded.capture(ids, aux_layers=LAYERS)
    assert torch.equal(tiny_loaded.lm_head(last), tiny_loaded.model(input_ids=ids).logits)


def test_threads_capture_their_own_states(tiny_loaded: Target) -> None:
    batches = [some_ids(seed, (2, 5 + seed % 7)) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda ids: tiny_loaded.capture(ids, aux_layers=LAYERS), batches))
    for ids, (aux, last) in zip(batches, found, strict=True):
        wanted_aux, wanted_last = reference(tiny_loaded, ids)
        assert torch.allclose(aux, wanted_aux, atol=1e-5)
        assert torch.allclose(last, wanted_last, atol=1e-5)


def test_a_layer_that_the_target_lacks_is_named(tiny_loaded: Target) -> None:
    with pytest.raises(TargetError, match="no layer 7"):
        tiny_loaded.capture(some_ids(2, (1, 4)), aux_layers=(1, 2, 7))


def test_the_model_is_loaded_once(tiny_artifact: Shards, tiny_spec: TargetSpec, tiny_loaded: Target) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert all(t is tiny_loaded for t in pool.map(lambda _: load_target(tiny_artifact, tiny_spec), range(8)))
