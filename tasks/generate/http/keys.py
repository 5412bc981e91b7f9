"""API keys: read once, from an environment variable or a Prefect Secret block, and never shown."""

from __future__ import annotations

import os
from typing import Any, cast

from pydantic import SecretStr

from schemas.errors import RecipeError
from schemas.serving import EndpointSpec
from tasks.artifacts.redaction import remember_secret


def api_key(endpoint: EndpointSpec) -> SecretStr | None:
    """The key of an endpoint; None if it needs none.

    Raises:
        RecipeError: a key is wanted but neither the variable nor the block has it.
    """
    if endpoint.api_key_env and (value := os.environ.get(endpoint.api_key_env, "").strip()):
        remember_secret(value)
        return SecretStr(value)
    if endpoint.api_key_block:
        value = _from_block(endpoint.api_key_block)
        remember_secret(value)
        return SecretStr(value)
    if endpoint.api_key_env:
        raise RecipeError(f"{endpoint.api_key_env} is not set: export the API key of {endpoint.url} in it")
    return None


def _from_block(name: str) -> str:
    from prefect.blocks.system import Secret

    try:
        block = cast(Any, Secret).load(name, _sync=True)
    except ValueError as exc:
        raise RecipeError(f"there is no Prefect Secret block named {name}: create it, or set api_key_env") from exc
    value = block.get()
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
