"""The rows of one table as a stretch of windows leaves them: of each key that was touched its newest image, or that it
is gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.formats.deletes import deletes_by_key, head
from etl.formats.load_data import format_load
from etl.shapes.identity import locating_columns
from etl.shapes.newest import GONE, codes_of, last_of_each
from relay import Load
from relay.storage import Storage
from upstream.schema import Table

_FOLD_ROWS = 200_000


class NewestRows:
    """Images are added in order; `rows` are the last ones of each key."""

    def __init__(self, table: Table) -> None:
        """`table`: the upstream's, which doesn't change while images are added."""
        self.table = table
        self._parts: list[pa.Table] = []
        self._waiting = 0

    def add(self, images: pa.Table) -> None:
        """Images as `etl.shapes.newest` gives them, later than all that were added."""
        self._parts.append(images)
        self._waiting += images.num_rows
        if self._waiting > _FOLD_ROWS:
            self._fold()

    @property
    def bytes(self) -> int:
        """Of what is kept."""
        return sum(part.nbytes for part in self._parts)

    @property
    def rows(self) -> pa.Table:
        """One image a key, in the order of the last changes."""
        self._fold()
        return self._parts[0] if self._parts else pa.table({GONE: pa.array([], pa.bool_())})

    def _fold(self) -> None:
        if len(self._parts) > 1:
            whole = pa.concat_tables(self._parts).combine_chunks()
            self._parts = [last_of_each(self.table, whole)]
        self._waiting = 0


def as_of_later(table: Table, rows: pa.Table, later: pa.Table) -> pa.Table:
    """`rows` as they are after `later` ones; keys that are in `later` alone aren't among them."""
    if not rows.num_rows or not later.num_rows:
        return rows
    mine, others = codes_of(table, [rows, later])
    touched = later.filter(pa.array(np.isin(others, mine)))
    untouched = rows.filter(pa.array(~np.isin(mine, others)))
    return pa.concat_tables([untouched, touched])


def condition_of(table: Table, rows: pa.Table) -> str:
    """SQL that is true for the rows with these keys, and says the same upstream and downstream: text is compared byte
    for byte.
    """
    key = locating_columns(table)
    arrays = [_one(rows[column.name]) for column in key]
    begin = len(head(table))
    # Lists in place of single comparisons: the server looks a value up in a sorted list.
    parts = [statement[begin:] for _, statement in deletes_by_key(table, key, arrays, once=True)]
    return "\nOR ".join(f"({part.decode('utf-8')})" for part in parts)


def write_loads(storage: Storage, table: Table, rows: pa.Table, path: str) -> tuple[Load, ...]:
    """The rows that aren't gone, as files whose names begin with `path`. Raises OSError."""
    there = rows.filter(pc.invert(rows[GONE])).combine_chunks()
    columns = {column.name: _one(there[column.name]) for column in table.stored_columns}
    return tuple(_written(storage, table, columns, there.num_rows, path)) if there.num_rows else ()


def _written(storage: Storage, table: Table, columns: dict[str, pa.Array], count: int, path: str) -> Iterator[Load]:
    for number, load in zip(itertools.count(), format_load(table, columns, count)):
        content = load.payload.to_pybytes()
        name = f"{path}-{number}.load"
        storage.replace(name, content)
        yield Load(name, load.layout.to_json(), load.rows, load.warnings, len(content), google_crc32c.value(content))


def _one(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


@dataclass(frozen=True, slots=True)
class KeyChunk:
    """Some of the touched keys with their newest images. `number`: from 1 on, in the table's own order."""

    number: int
    rows: pa.Table


def cut(rows: pa.Table, size: int) -> Iterator[KeyChunk]:
    """All rows, `size` at a time."""
    for number, first in enumerate(range(0, rows.num_rows, size), 1):
        yield KeyChunk(number, rows.slice(first, size))
