"""API keys come from a variable or a block, and are never shown."""

from __future__ import annotations

import pytest
from prefect.blocks.system import Secret

from schemas.errors import RecipeError
from schemas.serving import EndpointSpec
from tasks.generate.http.keys import api_key

URL = "https://openrouter.ai"


def test_a_key_of_the_environment_is_taken_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " secret-value\n")
    key = api_key(EndpointSpec(url=URL, api_key_env="SOME_KEY"))
    assert key
    assert key.get_secret_value() == "secret-value"
    assert "secret-value" not in repr(key)


def test_an_endpoint_may_need_no_key() -> None:
    assert api_key(EndpointSpec(url=URL)) is None


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(RecipeError, match="SOME_KEY is not set"):
        api_key(EndpointSpec(url=URL, api_key_env="SOME_KEY"))


@pytest.mark.usefixtures("prefect_server")
def test_a_block_holds_the_key_if_the_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    Secret(value="block-value").save("some-key", _sync=True)  # type: ignore[call-arg]
    key = api_key(EndpointSpec(url=URL, api_key_env="SOME_KEY", api_key_block="some-key"))
    assert key
    assert key.get_secret_value() == "block-value"
    with pytest.raises(RecipeError, match="no Prefect Secret block named other-key"):
        api_key(EndpointSpec(url=URL, api_key_block="other-key"))
