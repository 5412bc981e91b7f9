"""Adapters of datasets whose row is one question in one column."""

from __future__ import annotations

from tasks.prompts.adapters.shapes import Adapter, Column, Row
from tasks.prompts.script import Script, checked_list, question

HUMAN_EVAL_REQUEST = "Complete the following Python function.\n\n```python\n{code}\n```"


def text_column(name: str, key: str = "id", hub_config: str = "") -> Adapter:
    """An adapter for rows whose question is the text of one column."""
    return Adapter(
        lambda row: question(row.get(name), f"column {name}"), (Column(name),), key=key, hub_config=hub_config
    )


def _human_eval(row: Row) -> Script:
    code = row.get("prompt")
    if isinstance(code, str) and code.strip():
        code = HUMAN_EVAL_REQUEST.format(code=code.rstrip())
    return question(code, "column prompt")


def _mt_bench(row: Row) -> Script:
    return question(checked_list(row.get("turns"), "turns")[0], "the first of turns")


HUMAN_EVAL = Adapter(_human_eval, (Column("prompt"),), key="task_id", hub_split="test")
MT_BENCH = Adapter(_mt_bench, (Column("turns", "list of text"),), key="question_id")
OPENCODEINSTRUCT = text_column("input", hub_config="train")
MAGICODER_OSS = text_column("problem", key="index")
MAGICODER_EVOL = text_column("instruction", key="")
