"""Delete rows without a key: a statement for each that differs, by all its values.

Many of them are one step that lets the sink find all at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from sluice.etl.changes.formats.deletes import delete_head
from sluice.etl.changes.formats.load_data import LoadChunk, format_load
from sluice.etl.changes.steps import ListedRows
from sluice.tidb import column_types
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

MIN_LISTED_ROWS = 16
"""Number of different rows from which on they are found at once; fewer are faster one by one."""
_ROW, _TIMES = "sluice_row", "sluice_times"
_ROWS_A_STEP = 16_384
_STEP_BYTES = 3 * 2**20
_MAX_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class KeylessDeletes:
    """Rows of a table that are to go, those that are equal in every value as one.

    It has the condition of each, how many there are, and their `images`, a column each by name.
    """

    table: Table
    conditions: Sequence[bytes]
    counts: Sequence[int]
    images: Mapping[str, pa.Array]

    def statements(self) -> Iterator[tuple[int, bytes]]:
        """Yield (rows, DELETE) for each."""
        for condition, count in zip(self.conditions, self.counts, strict=True):
            yield count, delete_head(self.table) + condition + b" LIMIT %d" % count

    def listed(self) -> Iterator[tuple[int, bytes, ListedRows | None]]:
        """Yield (rows, payload, how it is to be read) of delete steps with many rows each.

        Rows that can't be listed are statements, without the last.
        """
        for first, end in self._portions():
            part = self._slice(first, end)
            statements = list(part.statements())
            text = part._text()
            if text is None:
                yield from ((count, statement, None) for count, statement in statements)
                continue
            lengths = tuple(len(statement) for _, statement in statements)
            payload = b"".join([*(statement for _, statement in statements), text.payload])
            yield sum(part.counts), payload, ListedRows(lengths, tuple(part.counts), text.layout)

    def _portions(self) -> Iterator[tuple[int, int]]:
        first = size = 0
        for at, condition in enumerate(self.conditions):
            size += len(condition)
            if at + 1 - first == _ROWS_A_STEP or size > _STEP_BYTES:
                yield first, at + 1
                first, size = at + 1, 0
        if first < len(self.conditions):
            yield first, len(self.conditions)

    def _slice(self, first: int, end: int) -> KeylessDeletes:
        images = {name: array.slice(first, end - first) for name, array in self.images.items()}
        return replace(
            self,
            conditions=self.conditions[first:end],
            counts=self.counts[first:end],
            images=images,
        )

    def _text(self) -> LoadChunk | None:
        """Return the rows as one load.

        None where they aren't all alike, or hold what servers take with a warning.
        """
        columns = self.table.writable_columns
        if {_ROW, _TIMES} & {folded(column.name) for column in self.table.columns}:
            return None
        numbers = tuple(
            Column(-1 - n, name, n, column_types.INT) for n, name in enumerate((_ROW, _TIMES))
        )
        wider = replace(self.table, columns=(*numbers, *columns), indexes=())
        values = {
            _ROW: pa.array(np.arange(len(self.counts))),
            _TIMES: pa.array(self.counts, pa.int64()),
        }
        chunks = list(format_load(wider, {**values, **self.images}, len(self.counts), _MAX_LIMIT))
        return chunks[0] if len(chunks) == 1 and not chunks[0].warnings else None
