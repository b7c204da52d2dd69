"""Write the SQL statements that take a transaction back.

Each statement finds a row only if it is still as the transaction left it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.deletes import delete_head
from sluice.etl.changes.formats.sql_columns import (
    join,
    key_conditions,
    literal_column,
    row_conditions,
)
from sluice.etl.changes.formats.sql_scripts import grouped_rows, inserts
from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.changes.write_plans.net_effect import unchanged_rows
from sluice.etl.changes.write_plans.raw_changes import Images, image_count
from sluice.etl.history.undo.inverse import InverseChanges
from sluice.tidb import column_types
from sluice.tidb.schema import Column, Table

_TIME_KINDS = ("timestamp", "datetime")


@dataclass(frozen=True, slots=True)
class UndoStatement:
    """An undo statement.

    `rows`: how many it affects if all of them are as the transaction left them.
    """

    sql: bytes
    rows: int


class TableUndoSql:
    """The statements for one table, under the name that `named` has.

    `exact_floats`: FLOATs are written with all their digits, as TiDB's own; else as a replica has
    them.
    """

    def __init__(self, reverse: InverseChanges, named: Table, *, exact_floats: bool) -> None:
        self.reverse = reverse
        self.named = named
        self._exact = exact_floats
        self.key = [self._column(column) for column in lookup_key_columns(reverse.touched.then)]
        self.writable = [self._column(column) for column in reverse.touched.then.writable_columns]

    def statements(self) -> Iterator[UndoStatement]:
        """Yield the statements; deletes come first, so that the rows' keys are free.

        Others become what they were; and the rest come again.
        """
        yield from self._deletes()
        yield from self._updates()
        yield from self._inserts()

    @property
    def is_keyless(self) -> bool:
        """Return whether rows are found by all their values."""
        return not self.key

    def arrays(self, columns: Sequence[Column], images: Images) -> list[pa.Array]:
        """Return values as `literal_column` wants them for these columns."""
        return [
            (
                images[c.name].cast(pa.float64())
                if pa.types.is_float32(images[c.name].type) and self._exact
                else images[c.name]
            )
            for c in columns
        ]

    def conditions(self, images: Images) -> list[bytes]:
        """Return a condition for each row that holds for the row as it is in `images` alone."""
        if not image_count(images):
            return []
        names = {column.name for column in self.key}
        others = [column for column in self.writable if column.name not in names]
        parts = [key_conditions(self.key, self.arrays(self.key, images))] if self.key else []
        parts += [row_conditions(others, self.arrays(others, images))] if others else []
        found: list[bytes] = join(*parts, separator=b" AND ").to_pylist()
        return found

    def _column(self, column: Column) -> Column:
        return (
            replace(column, tp=column_types.DOUBLE)
            if self._exact and column.kind == "float"
            else column
        )

    def _deletes(self) -> Iterator[UndoStatement]:
        conditions = self.conditions(self.reverse.left)
        begin = delete_head(self.named)
        if self.is_keyless:
            for condition, count in Counter(conditions).items():
                yield UndoStatement(begin + condition + b" LIMIT %d" % count, count)
            return
        for group in grouped_rows([b"(" + condition + b")" for condition in conditions]):
            yield UndoStatement(begin + b"\nOR ".join(group), len(group))

    def _updates(self) -> Iterator[UndoStatement]:
        after = self.reverse.after
        conditions = self.conditions(after)
        assignments = self._assignments(len(conditions))
        begin = f"UPDATE {quote_table(self.named)} SET ".encode()
        end = b" LIMIT 1" if self.is_keyless else b""
        for condition, assigned in zip(conditions, assignments, strict=True):
            if assigned:  # else only what is generated differs
                yield UndoStatement(begin + b", ".join(assigned) + b" WHERE " + condition + end, 1)

    def _assignments(self, count: int) -> list[list[bytes]]:
        """Return the columns to set, for each row that becomes what it was.

        Where any column differs all moments are set: ON UPDATE CURRENT_TIMESTAMP would make them
        what they never were. Moments of columns added since are set to themselves.
        """
        after, before = self.reverse.after, self.reverse.before
        rows = np.arange(count)
        differs = {
            column.name: ~unchanged_rows([before[column.name]], [after[column.name]], rows, rows)
            for column in self.writable
        }
        any_differs = np.logical_or.reduce(list(differs.values())) if count else np.zeros(0, bool)
        found: list[list[bytes]] = [[] for _ in range(count)]
        for column in self.writable:
            wanted = np.flatnonzero(
                any_differs if column.kind in _TIME_KINDS else differs[column.name]
            )
            if len(wanted):
                (values,) = self.arrays([column], before)
                literals = literal_column(values.take(pa.array(wanted)), column).to_pylist()
                for row, literal in zip(wanted.tolist(), literals, strict=True):
                    found[row].append(quote_name(column.name).encode() + b"=" + literal)
        for column in self.reverse.touched.added:
            if column.kind in _TIME_KINDS:
                name = quote_name(column.name).encode()
                for row in np.flatnonzero(any_differs).tolist():
                    found[row].append(name + b"=" + name)
        return found

    def _inserts(self) -> Iterator[UndoStatement]:
        arrays = self.arrays(self.writable, self.reverse.again)
        yield from (
            UndoStatement(sql, rows) for rows, sql in inserts(self.named, self.writable, arrays)
        )

    def has_enum_without_element(self) -> bool:
        """Return whether a value is put back that causes a warning: TiDB's ENUM index 0."""
        return any(
            pc.any(pc.equal(images[column.name], "")).as_py()
            for column in self.writable
            if column.kind == "enum" and "" not in column.elems
            for images in (self.reverse.again, self.reverse.before)
        )
