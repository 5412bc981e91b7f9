"""What a token format is: the markers of one family of models, and what an answer made of them may look like.

A format adds, drops or changes no id that was sampled. Where a text can be read in two ways it gives both readings, and
leaves it to the billed count to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from schemas.ragged import Ids

Part = str | int  # text, or the id of a marker

# How a prompt leaves the reasoning: it opened it; it closed it (thinking off); or it says nothing, so that the model
# itself samples the open marker, or does not reason.
Opening = Literal["open", "closed", "unsaid"]


class Fault(NamedTuple):
    """Why an answer is not one that the model can have given: a class that is counted, and the particulars."""

    reason: str
    detail: str


@dataclass(frozen=True)
class Said:
    """An answer as text, the way a server returned it."""

    reasoning: str | None
    content: str | None
    ended: bool  # by the model itself (stop, tool_calls), not by a limit


class Seams(NamedTuple):
    """White space that a family's template writes beside the reasoning's markers, so that its models sample it there.

    Servers are known to take it away.
    """

    after_open: str = ""
    before_close: str = ""
    after_close: str = ""


NO_SEAMS = Seams()


@dataclass(frozen=True)
class Reading:
    """One way in which a text can have been sampled; `doubt` is the delta class that explains why there are others."""

    parts: tuple[Part, ...]
    doubt: str = ""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; `arguments` is the text between the markers, never parsed and dumped.

    A call that is not of its family's form has no name.
    """

    name: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True)
class Reply:
    """An answer taken apart, for the history of the next turn; `sections` are the texts that its calls are taken from,
    markers and all."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    sections: tuple[str, ...] = ()


class TokenFormat(Protocol):
    """One family of models, bound to the ids of one tokenizer."""

    name: str
    end_ids: tuple[int, ...]  # ids that end a turn when sampled
    reply_ids: tuple[int, ...]  # every marker that an answer can hold, end ids included: forced into a draft vocabulary
    seams: Seams
    switch: str  # the template's variable that turns thinking off; empty if there is none
    opens_in_prompt: dict[bool, Opening]  # what the template's tail is with thinking on (True) and off (False)

    def opening(self, prompt_ids: Ids) -> Opening:
        """How this prompt leaves the reasoning, read off its last ids."""
        ...

    def openings(self, prompts: Sequence[Ids]) -> list[Opening]:
        """How each of many prompts does."""
        ...

    def readings(self, said: Said, opening: Opening) -> list[Reading] | Fault:
        """Every way in which the text can have been sampled, the likeliest first; or why it cannot be read."""
        ...

    def faults(
        self, prompts: Sequence[Ids], completions: Sequence[Ids], finish_reasons: Sequence[str]
    ) -> list[Fault | None]:
        """What is wrong with the structure of each answer's ids, None where nothing is."""
        ...

    def reply(self, completion: Ids, opening: Opening) -> Reply:
        """The answer taken apart at its markers."""
        ...

    def arguments(self, call: ToolCall, tools: Sequence[Mapping[str, Any]] | None) -> str:
        """A call's arguments as the JSON object that a client would be given; `tools` are those of its request.

        Raises:
            UnreadableArguments: they cannot be read.
        """
        ...
