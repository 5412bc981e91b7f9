"""`python -m tasks.reconstruct ANSWERS.jsonl`: whether raw API answers can be turned into exact ids, line by line.

For a look at a provider before a dollar is spent. Prints one JSON line per answer, and a summary on stderr. The exit
code is 0 if every answer was accepted, 1 if one was not, 2 if the file, the tokenizer or the command cannot be used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Any

from schemas.answers import ANSWERS, DELTA_MEANINGS
from schemas.errors import EyasError
from schemas.sections import CountingRule, ReconstructionSpec
from tasks.formats.registry import FORMATS
from tasks.reconstruct.assemble import Histogram, histogram, judge, observe, sample
from tasks.reconstruct.counting import USUAL, Counting, Observation, counting_rules
from tasks.reconstruct.folder import count_only, means_from
from tasks.reconstruct.lines import Entry, read_entries
from tasks.reconstruct.row import Means, Row

_AT_ONCE = 512  # answers judged together
_COUNTING = {
    f"{where}+end" if end else where: CountingRule(end_counted=end, reasoning_inside=where == "inside")
    for where in ("inside", "beside")
    for end in (True, False)
}
_NO_TOKENIZER = (
    "note: without --tokenizer only the number of returned ids is checked, and text cannot be turned into ids. Give a "
    "folder with the served model's tokenizer.json or tiktoken.model and tokenizer_config.json: the files of its "
    "Hugging Face repository, e.g. `hf download OWNER/MODEL --include '*token*' '*.jinja' --local-dir DIR`"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every answer of a file; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except EyasError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads the verdicts, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's own flush at exit complains
        return 0


def _run(options: argparse.Namespace) -> int:
    means = None
    spec = ReconstructionSpec(markers_in_prompt=options.markers_in_prompt, unverified=options.unverified)
    if options.tokenizer is None:
        print(_NO_TOKENIZER, file=sys.stderr)
    else:
        means = means_from(options.tokenizer, options.format, options.thinking, spec)
        print(f"format {means.token_format.name}", file=sys.stderr)
    rules = _rules(options, means)
    totals = _Totals()
    escaped = (sys.stdout.encoding or "").lower() != "utf-8"
    for entries in _batches(read_entries(options.answers)):
        rows = _judged([entry.row for entry in entries if entry.row is not None], means, rules)
        totals.histogram += histogram(rows)
        verdicts = iter(rows)
        for entry in entries:
            line = _verdict(entry, next(verdicts) if entry.row is not None else None)
            totals.take(entry, line)
            print(json.dumps(line, ensure_ascii=escaped))
    sys.stdout.flush()
    _summarise(totals, rules)
    return 1 if totals.reasons else 0


@dataclass
class _Totals:
    """What came out, for the summary."""

    accepted: Counter[str] = field(default_factory=Counter)  # by provenance
    unverified: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)  # keys of requests
    histogram: Histogram = field(default_factory=Counter)

    def take(self, entry: Entry, line: Mapping[str, Any]) -> None:
        """Count one answer."""
        self.unknown.update(entry.unknown)
        if line["accept"]:
            self.accepted[line["provenance"]] += 1
            self.unverified += line["delta_class"] == "unverified"
        else:
            self.reasons[line["reason"]] += 1


def _judged(rows: list[dict[str, Any]], means: Means | None, rules: Mapping[str, Counting]) -> list[Row]:
    table = ANSWERS.table(rows)
    return count_only(table, rules) if means is None else judge(table, means, rules)


def _rules(options: argparse.Namespace, means: Means | None) -> dict[str, Counting]:
    """Rules that the command pins, and those read off a sample of the file."""
    pinned: dict[str, CountingRule] = dict(options.counting)
    everyone = pinned.pop("", None)
    taken: Counter[str] = Counter()
    providers: set[str] = set()
    seen: list[Observation] = []
    for entries in _batches(read_entries(options.answers)):
        table = ANSWERS.table(entry.row for entry in entries if entry.row is not None)
        providers |= {row["provider"] or row["engine"] for row in table.to_pylist()}
        if means is not None and (rows := sample(table, taken)):
            seen += observe(table.take(rows), means)
    if everyone:
        pinned = dict.fromkeys(providers, everyone) | pinned
    return counting_rules(seen, pinned)


def _batches(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    while batch := list(islice(entries, _AT_ONCE)):
        yield batch


def _verdict(entry: Entry, row: Row | None) -> dict[str, Any]:
    fault = entry.fault if row is None else row.fault
    accepted = row is not None and fault is None
    ids = row.completion.tolist() if row is not None and accepted and row.completion is not None else None
    provenance = "quarantined" if not accepted else "returned" if row is not None and row.output is not None else None
    rebuilt = None if row is None else _rebuilt(row)
    return {
        "line": entry.line,
        "choice": entry.choice,
        "accept": accepted,
        "reason": fault.reason if fault else None,
        "detail": fault.detail if fault else None,
        "provenance": provenance or "reconstructed",
        "finish_reason": (row.finish if row is not None else None) or None,
        "ids": ids,
        "completion_tokens": entry.row["completion_tokens"] if entry.row is not None else None,
        "billed": row.billed if row is not None else None,
        "rebuilt": rebuilt,
        "delta": row.delta if row is not None else None,
        "delta_class": row.delta_class if row is not None else None,
        "provider": row.provider if row is not None else None,
    }


def _rebuilt(row: Row) -> int | None:
    """How many ids there are, or would be."""
    if row.completion is not None:
        return len(row.completion)
    return row.billed + row.delta if row.billed is not None and row.delta is not None else None


def _summarise(totals: _Totals, rules: Mapping[str, Counting]) -> None:
    accepted, quarantined = totals.accepted.total(), totals.reasons.total()
    print(
        f"{accepted + quarantined} answers: {totals.accepted['returned']} returned, {totals.accepted['reconstructed']} "
        f"rebuilt, {quarantined} quarantined",
        file=sys.stderr,
    )
    if totals.unverified:
        print(f"  {totals.unverified} of those accepted are unverified: no count came", file=sys.stderr)
    if totals.reasons["not_json"] == accepted + quarantined:
        print("note: no line is JSON; one response body a line is wanted, as `jq -c . FILE` writes it", file=sys.stderr)
    for reason, rows in totals.reasons.most_common():
        print(f"  {rows} {reason}", file=sys.stderr)
    for name, requests in totals.unknown.most_common():
        print(
            f"warning: the key {name} of {requests} requests is not understood: if it changes the prompt, prompt and "
            "ids are not those of the server",
            file=sys.stderr,
        )
    _tell_counting(totals.histogram, rules)


def _tell_counting(found: Histogram, rules: Mapping[str, Counting]) -> None:
    for provider in sorted({provider for provider, _, _ in found}):
        counting = rules.get(provider, USUAL)
        end = "counted" if counting.rule.end_counted else "not counted"
        where = "inside" if counting.rule.reasoning_inside else "beside"
        known = counting.source if counting.sure or counting.source == "default" else f"{counting.source}, not sure"
        print(f"provider {provider}: end id {end}, reasoning {where} completion_tokens ({known})", file=sys.stderr)
        print("  rebuilt minus billed  rows  class", file=sys.stderr)
        ours = [(delta, name, rows) for (who, delta, name), rows in found.items() if who == provider]
        for delta, name, rows in sorted(ours, key=lambda item: (item[0] is None, item[0] or 0, item[1])):
            shown = "no count" if delta is None else f"{delta:+d}" if delta else "0"
            print(f"  {shown:>20}  {rows:4}  {name}", file=sys.stderr)


def _counting(text: str) -> tuple[str, CountingRule]:
    provider, _, name = text.rpartition("=")
    if name not in _COUNTING:
        raise argparse.ArgumentTypeError(f"{name!r} is no counting rule; there are {', '.join(_COUNTING)}")
    return provider, _COUNTING[name]


_HELP = """
Each line that is printed has: line, choice, accept, reason and detail (why not), provenance (returned: the server's own
ids; reconstructed: from text; quarantined), finish_reason (as it is taken: stop, tool_calls, length), ids,
completion_tokens (the usage as it came), billed (how many ids that makes by the provider's counting rule: where the end
id is not counted one more, where reasoning stands beside it with reasoning_tokens added), rebuilt (how many ids there
are), delta (rebuilt minus billed), delta_class, provider.

Requests say whether the model was to think by chat_template_kwargs, thinking, enable_thinking, reasoning or
reasoning_effort. Keys that are not understood are named at the end.

formats: {formats}

delta classes (other reasons are faults of the response, the prompt or the order of markers, and `detail` tells them):
{classes}

exit code: 0 if every answer was accepted, 1 if one was not, 2 if the file, the tokenizer or the command cannot be used
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.reconstruct",
        description="Whether raw API answers can be turned into exact ids: one JSON line per answer on stdout, totals "
        "by class on stderr.",
        epilog=_HELP.format(
            formats=fill(", ".join(FORMATS), 110, break_on_hyphens=False),
            classes="\n".join(f"  {name:<26} {meaning}" for name, meaning in DELTA_MEANINGS.items()),
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "answers", type=Path, help='one response body a line, or {"request": …, "response": …}; requests render prompts'
    )
    parser.add_argument(
        "--format",
        default="auto",
        metavar="NAME",
        help="token format, one of those below (default: auto, read off tokenizer and chat template)",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="DIR",
        help="folder with the served model's tokenizer and chat template (default: none, only returned ids count)",
    )
    parser.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether thinking was on, where neither prompt ids nor the request say so (default: on)",
    )
    parser.add_argument(
        "--counting",
        type=_counting,
        action="append",
        default=[],
        metavar="[PROVIDER=]RULE",
        help=f"what completion_tokens are made of: {', '.join(_COUNTING)} (default: read off the answers; too few of "
        "them: inside+end)",
    )
    parser.add_argument(
        "--markers-in-prompt",
        choices=("quarantine", "mirror"),
        default="quarantine",
        help="requests whose text has a marker: quarantine, or read it as the control id (default: quarantine)",
    )
    parser.add_argument(
        "--unverified",
        choices=("keep", "quarantine"),
        default="keep",
        help="answers rebuilt from text without a count (default: keep)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
