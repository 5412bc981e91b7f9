"""The rules of the audit: each is one named pandera check with a sentence that says what it asks of a row.

Rules see a frame of figures per sequence, each 0 where all is well, never the ids or texts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import pandera.pandas as pandera
from pandera.errors import SchemaErrors

from schemas.ragged import Counts
from schemas.sections import AuditSpec, ReconstructionSpec

Kind = Literal["gate", "policy", "warning"]
Need = Literal["vocabulary", "context", "template", "format", "tokenizer", "benchmark"]

STRUCTURE = {
    "empty_completion": "the answer has an id",
    "end_id_inside": "no end id stands before the last id of the answer",
    "end_id_missing": "an answer that the model ended has its end id",
    "end_id_after_cut": "an answer that was cut has no end id",
    "open_marker_in_answer": "the answer does not open the reasoning that its prompt has opened",
    "close_marker_missing": "an answer that reasoned to its end closes the reasoning",
    "close_marker_repeated": "the reasoning is closed once",
    "close_marker_unasked": "an answer without reasoning closes none",
    "tool_markers_unbalanced": "tool sections and calls are opened and closed in order",
    "role_marker_in_answer": "the answer has no marker of a role, which only the template writes",
}


@dataclass(frozen=True)
class Rule:
    """One check on one figure, which has the rule's name.

    A `gate` rule quarantines and counts for audit.max_quarantined_share; a `policy` rule quarantines too, but is
    what the recipe asks for or has a gate of its own; a `warning` only counts.
    """

    name: str
    sentence: str
    kind: Kind = "gate"
    needs: Need | None = None

    def column(self) -> pandera.Column:
        """The rule as a pandera column."""
        return pandera.Column(checks=pandera.Check(_is_zero, name=self.name, error=self.sentence), name=self.name)


def rules_for(spec: AuditSpec, reconstruction: ReconstructionSpec) -> list[Rule]:
    """The rules of a recipe, in the order in which the first that fails gives a row its reason."""
    return [*_structure(), *_proof(reconstruction), *_origin(spec), *_prompts(spec), *_warnings(spec)]


def failures(figures: Mapping[str, Counts], rules: Sequence[Rule]) -> dict[str, list[int]]:
    """The rows that fail each rule, by the rule's name; a rule without figures fails nowhere."""
    failed: dict[str, list[int]] = {rule.name: [] for rule in rules}
    # pandera costs as much for a column of zeros as for any other, and nearly all are
    suspects = {rule.name: rule.column() for rule in rules if rule.name in figures and figures[rule.name].any()}
    if not suspects:
        return failed
    try:
        pandera.DataFrameSchema(suspects).validate(pd.DataFrame({n: figures[n] for n in suspects}), lazy=True)
    except SchemaErrors as exc:
        for name, row in exc.failure_cases[["column", "index"]].itertuples(index=False):
            failed[name].append(int(row))
    return failed


def _structure() -> list[Rule]:
    return [
        Rule("unreadable_request", "the request is JSON with a list of messages"),
        Rule("id_out_of_range", "every id is one of the target's", needs="vocabulary"),
        Rule("other_template", "the prompt was made with the target's present chat template", needs="template"),
        Rule("prompt_is_closed", "the prompt ends where the answer begins, not with an end id", needs="format"),
        Rule(
            "stopped_at_the_limit",
            "an answer of as many ids as max_tokens that is said to have stopped has its end id",
            needs="format",
        ),
        *(Rule(name, sentence, needs="format") for name, sentence in STRUCTURE.items()),
        Rule("longer_than_context", "prompt and answer fit in the target's context", needs="context"),
        Rule("no_supervised_token", "the loss mask has a 1"),
        Rule("mask_not_the_answer", "the loss mask is 1 over the answer, and 0 over the prompt"),
    ]


def _proof(reconstruction: ReconstructionSpec) -> list[Rule]:
    unverified: Kind = "policy" if reconstruction.unverified == "quarantine" else "warning"
    return [
        Rule("text_differs", "the ids of the answer decode to the text that was returned", needs="tokenizer"),
        Rule(
            "replacement_character",
            "the answer has no U+FFFD, the mark of damaged text, that its request had not",
            needs="tokenizer",
        ),
        Rule("billed_count_differs", "as many ids were billed as the answer has, by the provider's counting rule"),
        Rule("unverified", "the engine sent a count of the answer's ids (reconstruction.unverified)", unverified),
    ]


def _origin(spec: AuditSpec) -> list[Rule]:
    named = (("provider", spec.providers), ("model", spec.models), ("quantization", spec.quantizations))
    return [
        Rule(f"{name}_not_allowed", f"the {name} is one of audit.{name}s: {', '.join(allowed)}")
        for name, allowed in named
        if allowed
    ]


def _prompts(spec: AuditSpec) -> list[Rule]:
    rules = [Rule("duplicate_prompt", "no earlier row has the same prompt", "policy")]
    if spec.on_length == "drop":
        rules.append(Rule("truncated", "the answer was not cut (audit.on_length: drop)", "policy"))
    rules.append(Rule("benchmark_overlap", "the prompt does not ask what a benchmark asks", needs="benchmark"))
    if spec.near_duplicate_similarity:
        rules.append(
            Rule(
                "near_duplicate",
                "no earlier conversation with the same system text and tools shares "
                f"{spec.near_duplicate_similarity:.0%} of its words' 5-grams (audit.near_duplicate_similarity)",
                "policy",
            )
        )
    return rules


def _warnings(spec: AuditSpec) -> list[Rule]:
    cut = [] if spec.on_length == "drop" else [Rule("cut_by_length", "the answer was not cut", "warning")]
    return [
        *cut,
        Rule("cut_before_max_tokens", "an answer that was cut has as many ids as max_tokens", "warning"),
        Rule("longer_than_max_tokens", "the answer has at most max_tokens ids", "warning"),
        Rule("ends_in_a_loop", "the answer does not end in a loop of a few ids", "warning"),
    ]


def _is_zero(figure: pd.Series) -> pd.Series:
    return figure == 0
