"""Rows come one at a time out of JSON lines, a JSON array or Parquet, packed or not; their bytes are never changed."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.prompts.records import Record, SourceDamaged, open_file
from tasks.prompts.script import Unusable


def read(path: Path, content: bytes, wanted: tuple[str, ...] = ("a",)) -> list[Record]:
    path.write_bytes(content)
    return list(open_file(path, wanted).rows)


def rows(records: list[Record]) -> list[Any]:
    return [record.row.reason if isinstance(record.row, Unusable) else record.row for record in records]


def parquet(table: pa.Table, row_group_size: int = 2) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=row_group_size)
    return out.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows"


def test_a_line_is_known_by_its_number_and_keeps_its_bytes(path: Path):
    assert read(path, b'{"a": 1}\r\n {"a":2}') == [
        Record("line 1", b'{"a": 1}\r', {"a": 1}),
        Record("line 2", b' {"a":2}', {"a": 2}),
    ]


def test_a_line_separator_of_unicode_does_not_end_a_line(path: Path):
    assert rows(read(path, '{"a": "x\u2028y\x85z"}\n'.encode())) == [{"a": "x\u2028y\x85z"}]


@pytest.mark.parametrize("content", [b'{"a": 1}\n', b'[{"a": 1}]'])
def test_a_byte_order_mark_is_no_content(path: Path, content: bytes):
    (record,) = read(path, b"\xef\xbb\xbf" + content)
    assert (record.raw, record.row) == (b'{"a": 1}', {"a": 1})


def test_a_torn_last_line_is_rejected_alone(path: Path):
    assert rows(read(path, b'{"id":1}\n{"id":2,"te')) == [{"id": 1}, "torn_last_line"]
    assert rows(read(path, '{"a": "caf\u00e9'.encode()[:-1])) == ["torn_last_line"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'{"a": "\xed\xa0\x80"}', "invalid_utf8"),
        (b'{"a": ', "invalid_json"),
        (b'{"a": ' + b"[" * 100_000, "invalid_json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b"  \t", "blank_line"),
        (b'"a"', "not_an_object"),
    ],
)
def test_a_line_that_is_no_row_has_its_reason(path: Path, line: bytes, expected: str):
    records = read(path, b'{"a": 0}\n' + line + b"\n")
    assert rows(records) == [{"a": 0}, expected]
    assert records[1].raw == line


def test_an_array_gives_its_items_with_their_bytes(path: Path):
    content = b'[\n {"a": "x\\r\\n"},{"a" : 2 } ,\r\n5, "s", null]\n'
    records = read(path, content)
    assert rows(records) == [{"a": "x\r\n"}, {"a": 2}, *["not_an_object"] * 3]
    assert [record.raw for record in records] == [b'{"a": "x\\r\\n"}', b'{"a" : 2 }', b"5", b'"s"', b"null"]
    assert records[1].place == "row 2"


def test_an_array_may_be_empty(path: Path):
    assert read(path, b" [ ] ") == []


def test_an_item_of_an_array_that_is_not_utf8_is_rejected_alone(path: Path):
    records = read(path, b'[{"a": "\xff"}, {"a": 1}, {"a": "\\ud83d"}]')
    assert rows(records) == ["invalid_utf8", {"a": 1}, {"a": "\ud83d"}]
    assert records[0].raw == b'{"a": "\xff"}'


@pytest.mark.parametrize(
    "content", [b"[", b'[{"a": 1}', b'[{"a": 1},]', b'[{"a": 1} {"a": 2}]', b'[{"a": 1}, {"a"', b"[,]"]
)
def test_an_array_that_is_cut_or_damaged_is_an_error(path: Path, content: bytes):
    with pytest.raises(SourceDamaged, match="cut short or damaged after item"):
        read(path, content)


def test_an_array_that_is_followed_by_more_is_an_error(path: Path):
    with pytest.raises(SourceDamaged, match="goes on after its JSON array of 1 items"):
        read(path, b'["messages"]\n{"a": 1}\n')


@pytest.mark.parametrize("deep", [b"[" * 100_000, b"[" + b"9" * 5000])
def test_an_array_whose_item_has_no_value_is_an_error(path: Path, deep: bytes):
    with pytest.raises(SourceDamaged, match="item 1 cannot be read"):
        read(path, deep)


def test_items_larger_than_what_is_read_at_once_are_whole(path: Path):
    items = [{"a": "\u00e9" * 1_500_000}, {"a": 7}, {"a": "x" * 3_000_000}]
    assert rows(read(path, json.dumps(items, ensure_ascii=False).encode())) == items


def test_parquet_gives_the_columns_that_are_wanted(path: Path):
    table = pa.table({"a": ["x\r\n", None, "z"], "other": [1, 2, 3], "b": [[{"k": "v"}], [], None]})
    path.write_bytes(parquet(table))
    opened = open_file(path, {"a", "b", "absent"})
    records = list(opened.rows)
    assert opened.columns == ("a", "other", "b")
    assert rows(records) == [{"a": "x\r\n", "b": [{"k": "v"}]}, {"a": None, "b": []}, {"a": "z", "b": None}]
    assert records[1] == Record("row 2", b"", {"a": None, "b": []}, columnar=True)
    assert records[1].raw == b'{"a": null, "b": []}'


def test_a_text_of_parquet_that_is_not_utf8_is_rejected_alone(path: Path):
    bad = pa.array([b"ok", b"\xff"], pa.binary()).cast(pa.string(), safe=False)
    assert rows(read(path, parquet(pa.table({"a": bad})))) == [{"a": "ok"}, "invalid_utf8"]


def test_packed_files_give_the_same_rows(path: Path):
    for content in (b'{"a": 1}\n{"a": 2}\n', b'[{"a": 1}, {"a": 2}]', parquet(pa.table({"a": [1, 2, 3]}))):
        assert rows(read(path, gzip.compress(content))) == rows(read(path, content)) != []


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"a": 1}\n' * 100, mtime=0)[:-6],
        b"\x1f\x8b\x00nothing",
        parquet(pa.table({"a": [1]}))[:-6],
        gzip.compress(parquet(pa.table({"a": [1]}))[:-6], mtime=0),
        b"PAR1",
    ],
)
def test_a_damaged_file_is_an_error(path: Path, content: bytes):
    with pytest.raises(SourceDamaged, match="is damaged"):
        read(path, content)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ITEMS = st.lists(st.dictionaries(TEXTS, TEXTS | st.integers() | st.none(), max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=ITEMS, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_items_come_back_from_lines_and_from_an_array(path: Path, items: Any, ascii_only: bool, indent: int | None):
    def encoded(value: Any, **more: Any) -> bytes:
        return json.dumps(value, ensure_ascii=ascii_only, **more).encode()

    assert rows(read(path, b"".join(encoded(item) + b"\n" for item in items))) == items
    assert rows(read(path, encoded(items, indent=indent))) == items


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary() | st.lists(st.sampled_from([b"[", b"]", b"{}", b",", b"\n", b'"', b"1", b"\xc3"])).map(b"".join)
)
def test_any_bytes_are_records_or_one_error(path: Path, content: bytes):
    try:
        records = read(path, content)
    except SourceDamaged:
        return
    assert all(record.raw in content for record in records)
