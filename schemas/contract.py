"""A contract: one Arrow and one pandera schema for a Parquet table, checked where it is written and where it is read.

Types are checked on the Arrow schema, values with pandera on a frame of the table's scalar columns. A list or binary
column `c` shows up there as `c.length`, and a list of integers also as `c.min` and `c.max`, so that bulk data is never
copied into pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pandera
import pyarrow as pa
import pyarrow.compute as pc
from pandera.errors import SchemaErrors

from schemas.errors import ContractViolation

REGISTRY: dict[str, Contract] = {}


@dataclass(frozen=True)
class Contract:
    """The Arrow types and the value rules of one kind of table."""

    name: str
    arrow: pa.Schema
    checks: pandera.DataFrameSchema

    def __post_init__(self) -> None:
        if self.name in REGISTRY:
            raise ValueError(f"two contracts are named {self.name!r}")
        REGISTRY[self.name] = self

    def table(self, rows: Iterable[Mapping[str, Any]], where: str = "new rows") -> pa.Table:
        """Build a table from dictionaries and check it.

        Raises:
            ContractViolation: a key is missing or unknown, or a value breaks a rule.
        """
        rows = list(rows)
        wanted = set(self.arrow.names)
        for position, row in enumerate(rows):
            if set(row) != wanted:
                raise ContractViolation(
                    f"{where}: row {position} has columns {sorted(row)}, contract {self.name!r} wants {sorted(wanted)}"
                )
        try:
            table = pa.Table.from_pylist(rows, schema=self.arrow)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as exc:
            raise ContractViolation(f"{where}: values do not fit contract {self.name!r}: {exc}") from exc
        return self.check(table, where)

    def check(self, table: pa.Table, where: str) -> pa.Table:
        """Return the table if it meets the contract.

        Raises:
            ContractViolation: names the contract, the rule, and the first offending rows.
        """
        if not table.schema.equals(self.arrow, check_metadata=False):
            raise ContractViolation(
                f"{where}: columns are {_brief(table.schema)}, contract {self.name!r} wants {_brief(self.arrow)}"
            )
        for field in self.arrow:
            if not field.nullable and table[field.name].null_count:
                raise ContractViolation(f"{where}: {table[field.name].null_count} nulls in {self.name}.{field.name}")
        try:
            self.checks.validate(scalar_frame(table), lazy=True)
        except SchemaErrors as exc:
            raise ContractViolation(f"{where}: contract {self.name!r} is broken: {_first_failures(exc)}") from exc
        return table


def scalar_frame(table: pa.Table) -> pd.DataFrame:
    """The frame that pandera sees: scalar columns as they are, list and binary columns as lengths and extremes."""
    columns: dict[str, Any] = {}
    for field in table.schema:
        column = table[field.name].combine_chunks()
        if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
            columns[f"{field.name}.length"] = pc.call_function("list_value_length", [column]).to_pandas()
            if pa.types.is_integer(field.type.value_type):
                low, high = _list_extremes(column)
                columns[f"{field.name}.min"], columns[f"{field.name}.max"] = low, high
        elif pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            columns[f"{field.name}.length"] = pc.call_function("binary_length", [column]).to_pandas()
        else:
            columns[field.name] = column.to_pandas()
    return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows))


def _list_extremes(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Per-row minimum and maximum of a list column, NaN where a list is empty or null."""
    lengths = pc.fill_null(pc.call_function("list_value_length", [column]), 0).to_numpy(zero_copy_only=False)
    values = column.flatten().to_numpy(zero_copy_only=False)
    low = np.full(len(lengths), np.nan)
    high = np.full(len(lengths), np.nan)
    filled = lengths > 0
    if filled.any():
        starts = (np.cumsum(lengths) - lengths)[filled]
        low[filled] = np.minimum.reduceat(values, starts)
        high[filled] = np.maximum.reduceat(values, starts)
    return low, high


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _first_failures(exc: SchemaErrors, limit: int = 3) -> str:
    """A few failures in words; a rule on whole rows, which pandera reports once for every column, counts once a row."""
    cases = exc.failure_cases
    of_rows = cases["schema_context"] == "DataFrameSchema"
    told = [
        f"{case['column'] or 'table'} fails {case['check']} at row {case['index']} (value {case['failure_case']!r})"
        for case in cases[~of_rows].to_dict("records")
    ]
    told += [
        f"row {case['index']} fails {case['check']}"
        for case in cases[of_rows].drop_duplicates(["check", "index"]).to_dict("records")
    ]
    more = len(told) - limit
    return "; ".join(told[:limit]) + (f"; and {more} more" if more > 0 else "")
