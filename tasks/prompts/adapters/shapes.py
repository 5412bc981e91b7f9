"""What an adapter is: the columns it expects, and how it turns a row into a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tasks.prompts.script import Script

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column that an adapter reads, as the probe compares it with a source.

    `keys` are the alternatives that the items of a list may have; an optional column may be absent. A list or text is
    a list, or a text with its JSON.
    """

    name: str
    kind: Literal["text", "list of text", "list", "list or text"] = "text"
    keys: tuple[tuple[str, ...], ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Adapter:
    """One dataset's or format's rows.

    `key` is the column of a row's own key. `dropped` are columns with words for the model that are left out on
    purpose. Where the source is on the Hub, `hub_config` and `hub_split` are taken if the recipe names none.
    """

    to_script: Callable[[Row], Script]
    columns: tuple[Column, ...]
    key: str = ""
    dropped: frozenset[str] = frozenset()
    hub_config: str = ""
    hub_split: str = "train"

    @property
    def reads(self) -> frozenset[str]:
        """Names of all columns that are looked at."""
        return frozenset(column.name for column in self.columns) | ({self.key} if self.key else frozenset())
