"""A cut at any byte, or damage anywhere, costs the entries from there on and nothing else."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.generate.journal import Journal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
ENTRIES = st.dictionaries(st.text(), VALUES, min_size=1, max_size=6)


def written(folder: str, entries: dict[str, object]) -> tuple[Path, list[int]]:
    """A closed journal of these entries, and its length before each and after the last."""
    path = Path(folder) / "journal"
    ends = [0]
    with Journal(path) as journal:
        for key, value in entries.items():
            journal.append(key, value)
            ends.append(path.stat().st_size)
    return path, ends


def holds(path: Path, entries: dict[str, object], count: int) -> bool:
    """Whether opening gives exactly the first `count` entries."""
    with Journal(path) as journal:
        return len(journal) == count and all(journal.get(key) == entries[key] for key in list(entries)[:count])


@settings(max_examples=60, deadline=None)
@given(ENTRIES, st.data())
def test_a_cut_at_any_byte_loses_only_unfinished_lines(entries: dict[str, object], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, ends = written(folder, entries)
        cut = data.draw(st.integers(0, ends[-1]))
        path.write_bytes(path.read_bytes()[:cut])
        whole = max(place for place, end in enumerate(ends) if end <= cut)
        assert holds(path, entries, whole)
        assert path.stat().st_size == ends[whole]


@settings(max_examples=60, deadline=None)
@given(ENTRIES, st.data())
def test_a_changed_byte_loses_its_line_and_those_after_it(entries: dict[str, object], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, ends = written(folder, entries)
        place = data.draw(st.integers(0, ends[-1] - 1))
        content = bytearray(path.read_bytes())
        content[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        damaged = max(line for line, end in enumerate(ends[:-1]) if end <= place)
        assert holds(path, entries, damaged)


@settings(max_examples=30, deadline=None)
@given(ENTRIES, st.binary(max_size=40))
def test_after_a_torn_tail_new_entries_follow_the_whole_ones(entries: dict[str, object], torn: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, _ = written(folder, entries)
        with open(path, "ab") as handle:
            handle.write(torn.replace(b"\n", b""))
        with Journal(path) as journal:
            journal.append("after the restart", [1, 2])
        entries = {**entries, "after the restart": [1, 2]}
        assert holds(path, entries, len(entries))


def test_an_entry_of_another_key_is_not_found(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.append("this batch", 1)
        assert journal.get("another batch") is None
