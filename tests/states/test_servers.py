"""Servers give the same states as the target in this process, and every way in which they lose some is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import EngineError, ProbeFailed
from schemas.extraction import ExtractionSpec
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.extract.probe import refuse_failed
from tasks.extract.server_probe import probe_server
from tasks.states import asking
from tasks.states.embedded import EmbeddedSource
from tasks.states.opening import open_source
from tasks.states.source import Asked, Captured, StateSource
from tasks.target.model import Target
from tasks.target.parts import load_head_parts
from tests.states.engines import Engine, Sglang, Vllm, serving

LAYERS = [1, 2, 3]
PROMPTS = [[1, 4093, 198, 26843, 2], [1, 520, 9531], [1, 81, 472, 36, 34, 28, 905, 17, 33]]
ASKED = [Asked(str(number), [*ids, 11, 12, 13], len(ids) - 1) for number, ids in enumerate(PROMPTS)]
K = 5


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_WAIT_SECONDS", 0)


@pytest.fixture
def vllm(tiny_loaded: Target, tmp_path: Path) -> Vllm:
    return Vllm(tiny_loaded, LAYERS, tmp_path)


@pytest.fixture
def sglang(tiny_loaded: Target) -> Sglang:
    return Sglang(tiny_loaded, LAYERS)


def spec(url: str, engine: Engine, **changes: Any) -> ExtractionSpec:
    kind: dict[str, Any] = {"engine": "vllm"} if isinstance(engine, Vllm) else {"engine": "sglang", "teacher_top_k": K}
    return ExtractionSpec.model_validate(kind | {"endpoint": url} | changes)


def collected(source: StateSource) -> list[Captured]:
    return sorted(found for batch in source.states(ASKED) for found in batch)


def test_vllm_gives_the_states_of_the_target(
    vllm: Vllm, tiny_loaded: Target, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    with serving(vllm) as url:
        found = collected(open_source(tiny_artifact, tiny_spec, spec(url, vllm)))
    for asked, captured in zip(ASKED, found, strict=True):
        aux, last = tiny_loaded.capture(torch.tensor([asked.ids]), aux_layers=LAYERS)
        assert torch.equal(captured.aux, aux[0].bfloat16())
        assert captured.last is not None
        torch.testing.assert_close(captured.last, last[0, asked.taught_from :].bfloat16(), rtol=2**-7, atol=1e-5)
    assert list(vllm.folder.iterdir()) == [], "states that were read are removed"


def test_sglang_gives_the_auxiliary_states_and_the_likeliest_tokens(
    sglang: Sglang, tiny_loaded: Target, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    with serving(sglang) as url:
        found = collected(open_source(tiny_artifact, tiny_spec, spec(url, sglang)))
    embedded = collected(EmbeddedSource(tiny_loaded, ExtractionSpec(teacher_top_k=K)))
    for served, own in zip(found, embedded, strict=True):
        assert served.last is own.last is None
        assert served.top is not None
        assert own.top is not None
        torch.testing.assert_close(served.aux, own.aux, rtol=2**-7, atol=1e-4)
        assert torch.equal(served.top.ids, own.top.ids)
        torch.testing.assert_close(served.top.log_probabilities, own.top.log_probabilities, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_probe_passes_for_sound_servers_and_names_a_shifted_layer(
    name: str, request: pytest.FixtureRequest, tiny_loaded: Target, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    engine: Engine = request.getfixturevalue(name)
    parts = load_head_parts(tiny_artifact, tiny_spec)

    def checks(reference: Target | None) -> list[str]:
        with serving(engine) as url:
            wanted = spec(url, engine)
            source = open_source(tiny_artifact, tiny_spec, wanted)
            found = probe_server(source, reference, parts, PROMPTS, "float32", wanted)
        failed = [check.check for check in found if not check.passed]
        if failed:
            with pytest.raises(ProbeFailed, match=failed[0]):
                refuse_failed(found)
        return failed

    assert checks(tiny_loaded) == []
    engine.layers = [2, 3, 4]
    assert "layer_margin" in checks(tiny_loaded)
    assert checks(None) == [], "without the target at hand only what the server says of itself is known"


def lose_rows(engine: Engine) -> None:
    engine.lost_rows = 2


def other_ids(engine: Engine) -> None:
    assert isinstance(engine, Vllm)
    engine.other_ids = True


def no_states(engine: Engine) -> None:
    assert isinstance(engine, Vllm)
    engine.with_path = False


def three_states(engine: Engine) -> None:
    engine.layers = engine.layers[:2]


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("vllm", lose_rows, "gave 6 states of 8 ids for sequence 0, which has 8 ids"),
        ("vllm", other_ids, "other ids, or states from a cache"),
        ("vllm", no_states, "gave no hidden states: start it with the method extract_hidden_states"),
        ("vllm", three_states, "4 states were expected"),
        ("sglang", lose_rows, r"shape \[6, 192\] for sequence 0 with 8 ids.*--disable-radix-cache"),
        ("sglang", three_states, r"shape \[8, 128\]"),
    ],
)
def test_states_that_are_not_one_per_id_are_refused(
    name: str,
    spoil: Callable[[Engine], None],
    message: str,
    request: pytest.FixtureRequest,
    tiny_artifact: Shards,
    tiny_spec: TargetSpec,
) -> None:
    engine: Engine = request.getfixturevalue(name)
    spoil(engine)
    with serving(engine) as url:
        source = open_source(tiny_artifact, tiny_spec, spec(url, engine))
        with pytest.raises(EngineError, match=message):
            collected(source)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("disable_radix_cache", False, "has a radix cache"),
        ("chunked_prefill_size", 8192, "cuts prefills into chunks"),
        ("enable_return_aux_hidden_states", False, "gives no auxiliary states"),
        ("return_aux_hidden_state_layer_ids", [2, 3, 4], r"captures layers \[2, 3, 4\], not \[1, 2, 3\]"),
    ],
)
def test_an_sglang_server_that_would_lose_rows_is_refused_with_what_to_start_it_with(
    setting: str, value: object, message: str, sglang: Sglang, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    sglang.settings[setting] = value
    with serving(sglang) as url, pytest.raises(EngineError, match=f"{message}.*--enable-return-aux-hidden-states"):
        open_source(tiny_artifact, tiny_spec, spec(url, sglang))


def test_a_busy_server_is_asked_again(vllm: Vllm, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    with serving(vllm) as url:
        source = open_source(tiny_artifact, tiny_spec, spec(url, vllm, concurrency=1))
        vllm.busy = 2
        assert len(collected(source)) == len(ASKED)
        vllm.busy = 100
        with pytest.raises(EngineError, match=r"refused /v1/completions with 503.*busy"):
            collected(source)


def test_a_server_that_is_gone_is_named(vllm: Vllm, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    with serving(vllm) as url:
        source = open_source(tiny_artifact, tiny_spec, spec(url, vllm))
    with pytest.raises(EngineError, match=f"{url} does not answer"):
        collected(source)
