"""Find rows that differ between two readings: as a multiset of all values, byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.history.as_of.fingerprint import compared_columns
from sluice.etl.history.as_of.row_bytes import row_bytes
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Column, Table

__all__ = [
    "LIVE_ZERO_KINDS",
    "RowDiff",
    "as_table",
    "diff_rows",
    "differing_keys",
    "key_of",
    "keys_bytes",
    "one_array",
]

LIVE_ZERO_KINDS = ("double", "float")
"""Kinds whose zero has its sign on both sides, where both are servers."""


@dataclass(frozen=True, slots=True)
class RowDiff:
    """Rows that differ.

    `come`: rows of the upstream that aren't downstream, `gone`: rows of the downstream that aren't
    upstream; in both `table.writable_columns`. A row with other values is in both.
    """

    table: Table
    come: pa.Table
    gone: pa.Table

    @property
    def count(self) -> int:
        """Return how many rows differ: those with one key are one row."""
        if not self.come.num_rows or not self.gone.num_rows:
            return int(self.come.num_rows + self.gone.num_rows)
        if not key_of(self.table):
            return int(max(self.come.num_rows, self.gone.num_rows))
        return len({*keys_bytes(self.table, self.come), *keys_bytes(self.table, self.gone)})

    def __add__(self, other: RowDiff) -> RowDiff:
        return RowDiff(
            self.table,
            pa.concat_tables([self.come, other.come]),
            pa.concat_tables([self.gone, other.gone]),
        )


def diff_rows(
    table: Table,
    upstream: pa.Table,
    downstream: pa.Table,
    signed_zeros: Collection[str] = LIVE_ZERO_KINDS,
) -> RowDiff:
    """Compare rows in types and texts of `sluice.tidb.rows.arrow_schema`.

    See `sluice.etl.history.as_of.row_bytes`.
    """
    columns = compared_columns(table)
    ours, theirs = (
        row_bytes(
            columns, {c.name: one_array(side[c.name]) for c in columns}, signed_zeros=signed_zeros
        ).to_pylist()
        if side.num_rows
        else []
        for side in (upstream, downstream)
    )
    return RowDiff(
        table, _surplus_rows(upstream, ours, theirs), _surplus_rows(downstream, theirs, ours)
    )


def key_of(table: Table) -> list[Column]:
    """Return the key by which rows are found downstream, if it can be read there.

    [] where a database computes a part.
    """
    key = lookup_key_columns(table)
    return [] if any(column.generated for column in key) else key


def keys_bytes(table: Table, rows: pa.Table) -> list[bytes]:
    """Return the rows' keys as bytes, equal where the keys' bytes are."""
    key = key_of(table)
    if not rows.num_rows:
        return []
    found: list[bytes] = row_bytes(key, {c.name: one_array(rows[c.name]) for c in key}).to_pylist()
    return found


def differing_keys(found: RowDiff) -> pa.Table:
    """Return the keys of all rows that differ, on either side; of a table with a key."""
    names = [column.name for column in key_of(found.table)]
    return pa.concat_tables([found.come.select(names), found.gone.select(names)])


def as_table(table: Table, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return rows in the order of `table.writable_columns`, also if there are none."""
    schema = pa.schema(
        [pa.field(column.name, arrow_type(column)) for column in table.writable_columns]
    )
    return pa.Table.from_batches(
        [batch.select(schema.names).cast(schema) for batch in batches], schema
    )


def _surplus_rows(rows: pa.Table, own: list[bytes], others: list[bytes]) -> pa.Table:
    """Return those of `rows` that come more often there than on the other side."""
    left = Counter(others)
    at = []
    for number, content in enumerate(own):
        if left[content]:
            left[content] -= 1
        else:
            at.append(number)
    return rows.take(pa.array(at, pa.int64()))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the values in one piece."""
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)
