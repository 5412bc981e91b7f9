"""`eyas.json`: what an exported draft says of itself beyond what engines read, so that another run can go on from it.

It says for certain which layers feed the draft, and what simulated acceptance it had, so a warm start can be proven.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import DraftError

RECORD = "eyas.json"


class DraftRecord(BaseModel):
    """Facts of an exported draft."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(default=1, description="version of this record")
    target: str = Field(description="the target model's name")
    target_revision: str = ""
    capture_states: str = Field(default="output_of_layer", description="what aux_layers count, 0-based")
    aux_layers: tuple[int, int, int]
    simulated_acceptance: list[float] = Field(
        default_factory=list, description="share of held-out chains that survive each step together with all before"
    )
    steps: int = Field(default=0, ge=0, description="optimiser steps of training")
    parent: dict[str, Any] = Field(default_factory=dict, description="the draft that training went on from")

    def length(self, drafted: int) -> float | None:
        """Simulated acceptance length with this many drafted tokens, as far as it was measured."""
        if not self.simulated_acceptance:
            return None
        return 1 + sum(self.simulated_acceptance[:drafted])

    def to_bytes(self) -> bytes:
        """The file."""
        return (json.dumps(self.model_dump(mode="json"), indent=2) + "\n").encode()


def read_record(path: Path) -> DraftRecord | None:
    """The record at a path, or None if there is none.

    Raises:
        DraftError: it is damaged.
    """
    try:
        return DraftRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as exc:
        raise DraftError(f"{path} is damaged: {exc}") from exc
