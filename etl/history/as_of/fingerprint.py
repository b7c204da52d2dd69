"""Fingerprint a table's rows in 128 bits: equal for the same rows, whatever order and source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.history.as_of.row_bytes import row_bytes
from sluice.etl.history.as_of.row_digests import row_digests
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_MASK = (1 << 128) - 1
_HALF = 32


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A fingerprint: `digest` is the sum of the rows' digests, modulo 2^128.

    So those of parts add up to that of the whole.
    """

    rows: int = 0
    digest: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows + other.rows, (self.digest + other.digest) & _MASK)

    def __str__(self) -> str:
        return f"{self.rows:,} rows {self.digest:032x}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; `from_json` is the inverse."""
        return {"rows": self.rows, "digest": f"{self.digest:032x}"}

    @classmethod
    def from_json(cls, document: Any) -> Fingerprint:
        """Parse the result of `to_json`."""
        return cls(int(document["rows"]), int(document["digest"], 16))


def fingerprint(table: Table, batches: Iterable[pa.RecordBatch | pa.Table]) -> Fingerprint:
    """Fingerprint rows of `table`.

    Its writable columns count, by name whatever their order, in types and texts of
    `sluice.tidb.rows.arrow_schema`. What databases compute themselves, generated columns, is left
    out.
    """
    columns = compared_columns(table)
    found = Fingerprint()
    for batch in batches:
        found += _batch_digest(columns, batch)
    return found


def compared_columns(table: Table) -> list[Column]:
    """Return the columns that count, in an order that is the same wherever a table is."""
    return sorted(table.writable_columns, key=lambda column: folded(column.name))


def _batch_digest(columns: Sequence[Column], batch: pa.RecordBatch | pa.Table) -> Fingerprint:
    if not columns or not batch.num_rows:
        return Fingerprint(batch.num_rows)
    rows = row_bytes(columns, {column.name: batch[column.name] for column in columns})
    upper, lower = row_digests(rows)
    return Fingerprint(batch.num_rows, ((_sum_words(upper) << 64) + _sum_words(lower)) & _MASK)


def _sum_words(numbers: np.ndarray) -> int:
    """Return the exact sum of 64-bit numbers, which has more bits."""
    low = int((numbers & np.uint64((1 << _HALF) - 1)).sum())
    return (int((numbers >> np.uint64(_HALF)).sum()) << _HALF) + low
