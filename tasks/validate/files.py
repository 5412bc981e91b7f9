"""Reads sequences from Parquet files of any origin, a batch at a time, and a tokenizer's folder as far as there is one.

Columns may come in another order and with wider types of the same meaning; else a file must meet its contract.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.answers import SEQUENCES
from schemas.contract import Contract
from schemas.errors import ArtifactInvalid, ContractViolation, TargetError
from schemas.prompts import PROMPTS
from tasks.formats import plain
from tasks.formats.codec import Codec, load_codec
from tasks.formats.registry import bind
from tasks.overlap import BenchmarkIndex
from tasks.target.text import load_template
from tasks.validate.figures import Known
from tasks.validate.texts import benchmark_questions

BATCH = 1024  # rows


def read_batches(path: Path, contract: Contract = SEQUENCES) -> Iterator[pa.Table]:
    """The rows of a Parquet file, checked.

    Raises:
        ArtifactInvalid: the file cannot be read, or its rows do not meet the contract.
    """
    row = 0
    for batch in _batches(path, contract, contract.arrow.names):
        try:
            table = batch.cast(contract.arrow)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as exc:
            raise ContractViolation(f"{path} cannot be read as {contract.name}: {exc}") from exc
        yield contract.check(table, f"{path}, rows {row} to {row + table.num_rows - 1}")
        row += table.num_rows


def token_format_of(paths: list[Path]) -> str:
    """The token format that the rows of these files name.

    Raises:
        ArtifactInvalid: they name none or several, so it must be given.
    """
    names: set[Any] = set()
    for path in paths:
        for batch in _batches(path, SEQUENCES, ["token_format"]):
            names.update(batch["token_format"].to_pylist())
    if len(names) != 1:
        found = ", ".join(sorted(map(str, names))) or "no"
        raise ArtifactInvalid(f"the rows are of {found} token formats; give the one to check against with --format")
    return names.pop()


def known_of(folder: Path | None, token_format: str, benchmark: Path | None) -> Known:
    """What a tokenizer's folder and a table of benchmark prompts tell the audit.

    Raises:
        TokenFormatError: there is no such format, or the tokenizer is not of it.
        ArtifactInvalid: the prompts cannot be read.
    """
    index = None
    if benchmark is not None:
        index = BenchmarkIndex(
            asked for table in read_batches(benchmark, PROMPTS) for asked in benchmark_questions(table)
        )
    if folder is None:
        return Known(benchmark=index)
    codec = load_codec(folder)
    form = bind(token_format, codec, end_ids=_end_ids(folder, codec, token_format))
    try:
        template = hashlib.sha256(load_template(folder).text.encode()).hexdigest()
    except TargetError:
        template = None  # a tokenizer without a template: the rule about it is listed as not checked
    config = _json(folder / "config.json")
    context = config.get("text_config", config).get("max_position_embeddings")
    return Known(codec.vocab_size, context, template, codec, form, index)


def _batches(path: Path, contract: Contract, columns: list[str]) -> Iterator[pa.Table]:
    try:
        file = pq.ParquetFile(path)
        _check_columns(path, file.schema_arrow, contract)
        for batch in file.iter_batches(BATCH, columns=columns):
            yield pa.Table.from_batches([batch]).select(columns).replace_schema_metadata(None)
    except FileNotFoundError as exc:
        raise ArtifactInvalid(f"{path} is missing") from exc
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as exc:
        raise ArtifactInvalid(f"{path} cannot be read as {contract.name}: {exc}") from exc


def _check_columns(path: Path, found: pa.Schema, contract: Contract) -> None:
    faults = []
    for field in contract.arrow:
        if field.name not in found.names:
            faults.append(f"column {field.name} ({field.type}) is missing")
        elif pa.types.is_nested(found.field(field.name).type) != pa.types.is_nested(field.type):
            faults.append(f"column {field.name} is {found.field(field.name).type}, it must be {field.type}")
    if faults:
        raise ContractViolation(f"{path} does not meet contract {contract.name!r}: {'; '.join(faults)}")


def _end_ids(folder: Path, codec: Codec, token_format: str) -> list[int] | None:
    """The ids that end a turn by the model's settings; None where they say nothing, or nothing to rely on.

    A family knows its own end id, and only generation_config.json must agree: Kimi's tokenizer names another.
    """
    for name in ("generation_config.json", *(("config.json",) if token_format == plain.NAME else ())):
        found = _json(folder / name).get("eos_token_id")
        if found is not None:
            return [found] if isinstance(found, int) else list(found)
    named = _json(folder / "tokenizer_config.json").get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    if token_format != plain.NAME or not isinstance(text, str) or text not in codec.markers:
        return None
    return [codec.markers[text]]


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes())
    except ValueError as exc:
        raise ArtifactInvalid(f"{path} is damaged: {exc}") from exc
