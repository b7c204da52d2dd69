"""Compute the differences in a table between two moments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sluice.etl.history.as_of.advance import match_removed, schema, value_codes
from sluice.etl.history.as_of.row_bytes import row_bytes
from sluice.etl.history.as_of.versions import TableVersion
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Column

CHANGE_COLUMN = "change"
INSERTED, DELETED, CHANGED = "inserted", "deleted", "changed"


def diff_schema(before: TableVersion, after: TableVersion) -> pa.Schema:
    """Return the schema of differences.

    It is `change`, then ``old.<column>`` of each column of the table before, ``new.<column>`` of
    each after.
    """
    old = [field.with_name(f"old.{field.name}") for field in schema(before.columns)]
    new = [field.with_name(f"new.{field.name}") for field in schema(after.columns)]
    return pa.schema([pa.field(CHANGE_COLUMN, pa.string()), *old, *new])


def diff_rows(before: TableVersion, old: pa.Table, after: TableVersion, new: pa.Table) -> pa.Table:
    """Return the rows that differ, in `diff_schema`.

    Rows are the same by the key that both have; without one, a row with other values is one deleted
    and one inserted. Columns count that both have, with values of the same type.
    """
    shared = _shared_columns(before, after)
    key = _key(before, after, shared)
    old_codes, new_codes = value_codes(key or shared, old, new)
    gone, come = match_removed(old_codes, new_codes)
    deleted, inserted = np.flatnonzero(~gone), np.flatnonzero(~come)
    parts = [
        _rows(before, after, DELETED, old.take(pa.array(deleted)), None),
        _rows(before, after, INSERTED, None, new.take(pa.array(inserted))),
    ]
    if key:
        was, is_now = _matching_places(
            old_codes, np.flatnonzero(gone), new_codes, np.flatnonzero(come)
        )
        a, b = old.take(pa.array(was)), new.take(pa.array(is_now))
        other = (
            np.asarray(_values(shared, a)) != np.asarray(_values(shared, b))
            if len(was)
            else np.zeros(0, bool)
        )
        at = pa.array(np.flatnonzero(other))
        parts.append(_rows(before, after, CHANGED, a.take(at), b.take(at)))
    return pa.concat_tables(parts)


def _matching_places(
    old: np.ndarray, old_at: np.ndarray, new: np.ndarray, new_at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of equal codes, as many of each as both sides have."""
    return old_at[np.argsort(old[old_at], kind="stable")], new_at[
        np.argsort(new[new_at], kind="stable")
    ]


def _values(columns: Sequence[Column], rows: pa.Table) -> np.ndarray:
    arrays = {column.name: rows[column.name].combine_chunks() for column in columns}
    return np.array(row_bytes(columns, arrays).to_pylist(), object)


def _shared_columns(before: TableVersion, after: TableVersion) -> list[Column]:
    old = {column.name: column for column in before.writable}
    return [c for c in after.writable if c.name in old and _type(old[c.name]) == _type(c)]


def _type(column: Column) -> tuple[str, pa.DataType]:
    return column.kind, arrow_type(column)


def _key(before: TableVersion, after: TableVersion, shared: Sequence[Column]) -> list[Column]:
    names = {column.name for column in shared}
    old, new = ([column.name for column in version.steady_key] for version in (before, after))
    return after.steady_key if old == new and names.issuperset(new) else []


def _rows(
    before: TableVersion,
    after: TableVersion,
    change: str,
    old: pa.Table | None,
    new: pa.Table | None,
) -> pa.Table:
    rows = next(table for table in (old, new) if table is not None).num_rows
    arrays: list[pa.Array | pa.ChunkedArray] = [pa.array([change] * rows, pa.string())]
    for version, values in ((before, old), (after, new)):
        arrays += [
            values[column.name] if values is not None else pa.nulls(rows, arrow_type(column))
            for column in version.columns
        ]
    return pa.Table.from_arrays(arrays, schema=diff_schema(before, after))
