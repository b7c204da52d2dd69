"""Compute how a sum over a table's rows has changed between two moments, from the archive.

Only the rows that differ are read. So a sum that must stay the same (all accounts' balances) is
proved without reading the rows that are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.history.as_of import differences_between
from sluice.etl.settings import Settings
from sluice.expectations.lake_dataset import upstream_names
from sluice.expectations.suite import QualityError
from sluice.tidb.table_name import exactly

__all__ = ["SumChange", "sum_changes"]

_DECIMAL_DIGITS = 100
"""A DECIMAL has 65 at most, and few tables 10^35 rows; Python would round to 28."""


@dataclass(frozen=True, slots=True)
class SumChange:
    """Change of a column's sum, and of the number of rows."""

    column: str
    change: Decimal
    rows: int


def sum_changes(
    settings: Settings,
    table: str,
    columns: Sequence[str],
    between: tuple[int, int],
    run: Any = None,
) -> list[SumChange]:
    """Return the changes of a table's sums between two TSO (``schema.table`` downstream).

    Raises QualityError if a column is no number, or isn't there at both, ClearValuesError,
    AsOfError, SparkError, relay errors.
    """
    name = upstream_names(settings, between[1], {table})[table]
    more = {} if run is None else {"run": run}
    past = differences_between(settings, *between, [exactly(name)], **more)
    there = past.diff_schemas().get(name)
    missing = [
        column
        for column in columns
        if there is None or {f"old.{column}", f"new.{column}"} - {*there.names}
    ]
    if missing:
        raise QualityError(f"{table} hasn't had {', '.join(missing)} at both moments")
    found = dict.fromkeys(columns, Decimal(0))
    rows = 0
    with localcontext(prec=_DECIMAL_DIGITS):
        for _, batch in past.differences():
            rows += batch.num_rows
            for column in columns:
                found[column] += _sum(batch, f"new.{column}", table) - _sum(
                    batch, f"old.{column}", table
                )
        return [SumChange(column, found[column].normalize() + 0, rows) for column in columns]


def _sum(batch: pa.RecordBatch, name: str, table: str) -> Decimal:
    values = batch.column(name)
    try:
        if pa.types.is_floating(values.type):
            return Decimal(repr(pc.sum(values).as_py() or 0.0))
        if pa.types.is_large_string(values.type) or pa.types.is_string(values.type):
            return sum(
                (Decimal(text) for text in values.to_pylist() if text is not None), Decimal(0)
            )
        return Decimal(pc.sum(values.cast(pa.decimal128(38, 0))).as_py() or 0)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ArithmeticError) as error:
        raise QualityError(f"{table}: {name[4:]} can't be summed: {error}") from error
