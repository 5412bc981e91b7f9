"""One adapter per dataset or format: rows to scripts, with a closed table of roles each.

Whatever an adapter meets, it gives a script or says why not; it never maps what it does not know.
"""

from __future__ import annotations

from schemas.sections import DatasetSpec
from tasks.prompts.adapters import agents, dialogues, glaive, questions
from tasks.prompts.adapters.shapes import Adapter

ADAPTERS: dict[str, Adapter] = {
    "jsonl": dialogues.JSONL,
    "sharegpt": dialogues.SHAREGPT_ANY,
    "glaive": glaive.GLAIVE,
    "glaive_sharegpt": glaive.GLAIVE_SHAREGPT,
    "opencodeinstruct": questions.OPENCODEINSTRUCT,
    "magicoder_oss": questions.MAGICODER_OSS,
    "magicoder_evol": questions.MAGICODER_EVOL,
    "mixture_of_thoughts": dialogues.MIXTURE_OF_THOUGHTS,
    "openthoughts_114k": dialogues.OPENTHOUGHTS_114K,
    "openthoughts3": dialogues.OPENTHOUGHTS3,
    "ultrachat": dialogues.ULTRACHAT,
    "perfectblend": dialogues.PERFECTBLEND,
    "swe_agent": agents.SWE_AGENT,
    "swe_smith": agents.SWE_SMITH,
    "deepswe_kimi": dialogues.DEEPSWE_KIMI,
    "human_eval": questions.HUMAN_EVAL,
    "mt_bench": questions.MT_BENCH,
}
PROMPT_COLUMN = "prompt_column"


def adapter_of(dataset: DatasetSpec) -> Adapter:
    """The adapter that a recipe's dataset names."""
    if dataset.adapter == PROMPT_COLUMN:
        return questions.text_column(dataset.column)
    return ADAPTERS[dataset.adapter]
