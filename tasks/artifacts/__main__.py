"""`python -m tasks.artifacts`: what is in the store, where it came from, whether it is whole, and what can go."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

import tasks.environment  # noqa: F401 (before Prefect)

# isort: split
from rich.console import Console

from schemas import answers, corpus, measures, prompts  # noqa: F401 (registers the contracts)
from schemas.errors import EyasError
from tasks.artifacts.catalog import Catalog, existing_store, scan
from tasks.artifacts.display import entry_table, lineage_tree, removal_table, show_entry, size
from tasks.artifacts.upkeep import faults, removable, remove

_PIPE_WIDTH = 160
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns 0, 1 if something is wrong with the store, 2 if with the command."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, soft_wrap=not sys.stdout.isatty())
    try:
        return options.command(options, existing_store(), console)
    except EyasError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyError as exc:
        print(f"error: {exc.args[0]}", file=sys.stderr)
        return 2


def _ls(options: argparse.Namespace, root: Path, console: Console) -> int:
    catalog = scan(root)
    entries = [entry for entry in catalog.entries.values() if options.step in (None, entry.step)]
    console.print(entry_table(entries))
    console.print(f"{len(entries)} artifacts, {size(sum(entry.bytes for entry in entries))}, in {root}")
    return _tell_damaged(catalog, console)


def _show(options: argparse.Namespace, root: Path, console: Console) -> int:
    catalog = scan(root)
    show_entry(catalog, catalog.find(options.key), options.rows, console)
    return 0


def _lineage(options: argparse.Namespace, root: Path, console: Console) -> int:
    catalog = scan(root)
    console.print(lineage_tree(catalog, catalog.find(options.key)))
    return 0


def _verify(_: argparse.Namespace, root: Path, console: Console) -> int:
    found = list(faults(root))
    for key, fault in found:
        console.print(f"[red]{key}[/]: {fault}", highlight=False)
    catalog = scan(root)
    shards = sum(len(entry.shards) for entry in catalog.entries.values())
    verdict = f"{len(found)} faults; the next run makes again what is damaged" if found else "all whole"
    console.print(f"{len(catalog.entries)} results and {shards} shards checked by SHA-256: {verdict}")
    return 1 if found else 0


def _prune(options: argparse.Namespace, root: Path, console: Console) -> int:
    found = removable(root, options.older_than)
    if not found:
        console.print("nothing to remove")
        return 0
    console.print(removal_table(found))
    total = size(sum(removal.bytes for removal in found))
    if not options.yes:
        console.print(f"{len(found)} things, {total}, would go; nothing was removed. Add --yes to remove them")
        return 0
    kept = [removal for removal in found if not remove(removal)]
    for removal in kept:
        console.print(f"in use, kept: {removal.name}")
    freed = size(sum(removal.bytes for removal in found if removal not in kept))
    console.print(f"removed {len(found) - len(kept)} things, {freed}")
    return 0


def _tell_damaged(catalog: Catalog, console: Console) -> int:
    for key, why in catalog.damaged.items():
        console.print(f"[red]damaged[/] {key}: {why}", highlight=False)
    return 1 if catalog.damaged else 0


def _duration(text: str) -> datetime.timedelta:
    found = re.fullmatch(r"(\d+)([smhdw])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: give a number and s, m, h, d or w, as in 7d")
    return datetime.timedelta(**{_UNITS[found[2]]: int(found[1])})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.artifacts",
        description="Looks into the store (./store, or where EYAS_STORE says). KEY is what `ls` prints, or the first "
        "digits of it, with or without the step.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ls = commands.add_parser("ls", help="list the artifacts, the oldest first")
    ls.add_argument("--step", help="only those of one step, for instance train_draft")
    ls.set_defaults(command=_ls)
    show = commands.add_parser("show", help="schema, lineage, facts and first rows of one artifact")
    show.add_argument("key", metavar="KEY")
    show.add_argument("--rows", type=int, default=3, help="rows to show of each part (default 3)")
    show.set_defaults(command=_show)
    lineage = commands.add_parser("lineage", help="the family tree of one artifact")
    lineage.add_argument("key", metavar="KEY")
    lineage.set_defaults(command=_lineage)
    verify = commands.add_parser("verify", help="check every result and shard by hash; exit code 1 if one is damaged")
    verify.set_defaults(command=_verify)
    prune = commands.add_parser(
        "prune",
        help="say what could be removed, and with --yes remove it",
        description="Removes artifacts that no run has made or used within the age and that no artifact which is kept "
        "was made from, and what killed tasks left behind. Says what it would free; only --yes removes anything.",
    )
    prune.add_argument(
        "--older-than", type=_duration, default="30d", metavar="AGE", help="for instance 7d or 12h (30d)"
    )
    prune.add_argument("--yes", action="store_true", help="remove it")
    prune.set_defaults(command=_prune)
    return parser


if __name__ == "__main__":
    sys.exit(main())
