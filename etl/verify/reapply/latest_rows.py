"""Hold one table's rows as a range of windows leaves them.

Each changed key has its newest image, or is marked as deleted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.deletes import delete_head, deletes_by_key
from sluice.etl.changes.formats.load_data import format_load
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.changes.write_plans.latest_images import (
    DELETED_MARKER,
    key_codes_of,
    latest_of_each_key,
)
from sluice.relay import LoadFile
from sluice.relay.storage import Storage
from sluice.tidb.schema import Table

_MERGE_ROWS = 200_000


class LatestRows:
    """Images are added in order; `rows` are the last ones of each key."""

    def __init__(self, table: Table) -> None:
        """Create the latest rows.

        `table`: the upstream's, which doesn't change while images are added.
        """
        self.table = table
        self._parts: list[pa.Table] = []
        self._waiting = 0

    def add(self, images: pa.Table) -> None:
        """Add images that are later than all that were added.

        They are as `sluice.etl.changes.write_plans.latest_images` returns them.
        """
        self._parts.append(images)
        self._waiting += images.num_rows
        if self._waiting > _MERGE_ROWS:
            self._fold()

    @property
    def bytes(self) -> int:
        """Return the bytes of the rows in memory."""
        return sum(part.nbytes for part in self._parts)

    @property
    def rows(self) -> pa.Table:
        """Return one image a key, in the order of the last changes."""
        self._fold()
        return (
            self._parts[0] if self._parts else pa.table({DELETED_MARKER: pa.array([], pa.bool_())})
        )

    def _fold(self) -> None:
        if len(self._parts) > 1:
            whole = pa.concat_tables(self._parts).combine_chunks()
            self._parts = [latest_of_each_key(self.table, whole)]
        self._waiting = 0


def merged_with_later(table: Table, rows: pa.Table, later: pa.Table) -> pa.Table:
    """Return `rows` as they are after `later` ones, without keys that only `later` has."""
    if not rows.num_rows or not later.num_rows:
        return rows
    mine, others = key_codes_of(table, [rows, later])
    touched = later.filter(pa.array(np.isin(others, mine)))
    untouched = rows.filter(pa.array(~np.isin(mine, others)))
    return pa.concat_tables([untouched, touched])


def condition_of(table: Table, rows: pa.Table) -> str:
    """Return SQL that is true for the rows with these keys, alike upstream and downstream.

    Text is compared byte for byte.
    """
    key = lookup_key_columns(table)
    arrays = [_single_value(rows[column.name]) for column in key]
    begin = len(delete_head(table))
    # Lists in place of single comparisons: the server looks a value up in a sorted list.
    parts = [statement[begin:] for _, statement in deletes_by_key(table, key, arrays, once=True)]
    return "\nOR ".join(f"({part.decode('utf-8')})" for part in parts)


def write_loads(storage: Storage, table: Table, rows: pa.Table, path: str) -> tuple[LoadFile, ...]:
    """Write the rows that aren't deleted to files with the name prefix `path`. Raises OSError."""
    there = rows.filter(pc.invert(rows[DELETED_MARKER])).combine_chunks()
    columns = {column.name: _single_value(there[column.name]) for column in table.stored_columns}
    return (
        tuple(_write_rows(storage, table, columns, there.num_rows, path)) if there.num_rows else ()
    )


def _write_rows(
    storage: Storage, table: Table, columns: dict[str, pa.Array], count: int, path: str
) -> Iterator[LoadFile]:
    for number, load in zip(itertools.count(), format_load(table, columns, count)):
        content = load.payload.to_pybytes()
        name = f"{path}-{number}.load"
        storage.replace(name, content)
        yield LoadFile(
            name,
            load.layout.to_json(),
            load.rows,
            load.warnings,
            len(content),
            google_crc32c.value(content),
        )


def _single_value(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)
