"""What a fake server can do wrong, and when: by a script ("the next two requests"), or by chance.

Chance is drawn from the request's key and the number of the attempt, so that a seed gives the same faults whatever the
order of requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal[
    "status",  # options: status, retry_after ("7", "date:7"), message, limit_source, error_type
    "reset_before",
    "reset_middle",
    "stall_before",  # accepts the request and says nothing
    "stall_middle",
    "cut",  # closes in order before all promised bytes are sent
    "truncated_json",  # a whole response whose JSON is not
    "not_json",
    "error_in_body",  # options: code, message, error_type, retry_after
    "error_in_choice",  # options: code
    "error_in_stream",  # options: code
    "other_provider",  # options: provider
    "other_quantization",  # options: quantization
    "other_model",  # options: model
    "no_usage",
    "padded",
    "slow",  # options: seconds, before the answer or between the events of a stream
    "null_choices",
    "empty_content",
    "content_parts",
    "reasoning_field",  # options: name
]
# After these the server has made the answer, so that it bills it, though the client gets none that it can use.
BILLED_AND_LOST = {"reset_middle", "stall_middle", "cut", "truncated_json"}
# These only change how a good answer looks.
HARMLESS = {"padded", "slow", "content_parts", "reasoning_field", "no_usage", "other_provider", "other_quantization"}


@dataclass
class Fault:
    """One way to go wrong: for the next `times` requests that fit, or with a probability for each."""

    kind: Kind
    times: int = 0
    probability: float = 0.0
    first_attempts: int = 0  # with a probability: only the first attempts of a key; 0 takes all
    key: str = ""  # only requests with this key
    path: str = ""  # only paths that end so
    options: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Faults:
    """The faults of one server."""

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self._faults = list(faults)
        self._seed = seed

    def replace(self, faults: Iterable[Fault]) -> None:
        """Take these instead."""
        self._faults = list(faults)

    def draw(self, key: str, path: str, attempt: int) -> Fault | None:
        """The fault of one request, if any: at most one, the first that fits."""
        if not self._faults:
            return None
        chance = self._chance(key, attempt)
        for fault in self._faults:
            if (fault.key and fault.key != key) or not path.endswith(fault.path):
                continue
            if fault.times > 0:
                fault.times -= 1
                return fault
            if fault.first_attempts and attempt >= fault.first_attempts:
                continue
            if chance < fault.probability:
                return fault
            chance -= fault.probability  # so that probabilities add up
        return None

    def _chance(self, key: str, attempt: int) -> float:
        digest = hashlib.blake2b(f"{self._seed} {key} {attempt}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64
