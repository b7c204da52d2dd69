"""The rows that a session writes: INSERT, UPDATE and DELETE, until COMMIT makes a binlog of them.

A transaction reads what was committed when it began, and its own changes over it. COMMIT fails if
another transaction has changed one of its rows since, as TiDB's optimistic transactions do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.devstack.tidb.sql import values
from sluice.devstack.tidb.sql.errors import SQLError
from sluice.devstack.tidb.sql.versioned_rows import Key
from sluice.devstack.tidb.sql.versions import Versions
from sluice.etl.changes import server_errors
from sluice.tidb import pb
from sluice.tidb.codec.column_value import parse_text
from sluice.tidb.codec.row import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Table

__all__ = ["RowChange", "WriteTransaction", "column_names", "mutations", "stored_value"]

Row = list[Any]
"""The values of a table's stored columns, then the row id if it has one."""


@dataclass(slots=True)
class RowChange:
    """A row as it was when the transaction began, and as it is in the transaction."""

    before: Row | None
    after: Row | None


@dataclass(slots=True)
class _TableChanges:
    table: Table
    rows: dict[Key, RowChange] = field(default_factory=dict)


class WriteTransaction:
    """The changes of one transaction that reads as of `ts` (TSO)."""

    def __init__(self, versions: Versions, ts: int) -> None:
        self._versions, self.ts = versions, ts
        self._tables: dict[int, _TableChanges] = {}

    def __bool__(self) -> bool:
        return any(each.rows for each in self._tables.values())

    def rows(self, table: Table) -> Iterator[tuple[Key, Row]]:
        """Yield the table's rows as the transaction sees them; in no order if it changed some."""
        own = self._rows_of(table)
        for key, row in self._versions.keyed_rows(table, self.ts):
            if key not in own:
                yield key, row
        for key, change in own.items():
            if change.after is not None:
                yield key, change.after.copy()

    def changes(self, table: Table) -> bool:
        """Return whether the transaction has changed rows of the table."""
        return bool(self._rows_of(table))

    def apply(self, table: Table, removed: Sequence[Key], put: Sequence[Row]) -> None:
        """Remove rows, then put others; all or nothing.

        Raises SQLError DUPLICATE_ENTRY.
        """
        before = self._rows_of(table)
        self._tables[table.id] = _TableChanges(table, dict(before))
        try:
            for key in removed:
                self._set(table, key, None)
            for row in put:
                key = self._versions.key_of(table, row_values(table, row))
                if self._now(table, key) is not None:
                    raise _duplicate(table, "PRIMARY")
                self._set(table, key, row)
            if put:
                self._check_unique(table)
        except BaseException:
            self._tables[table.id] = _TableChanges(table, before)
            raise

    def next_id(self, table: Table, place: int) -> int:
        """Return an id above all that the value at this place of a row has."""
        taken = (row[place] for _, row in self.rows(table) if isinstance(row[place], int))
        return max(taken, default=0) + 1

    def check_unchanged(self, now: int) -> None:
        """Raise SQLError WRITE_CONFLICT if another transaction changed one of the rows until now.

        `now` is a TSO.
        """
        for each in self._tables.values():
            for key, change in each.rows.items():
                if self._versions.row_at(each.table, key, now) != change.before:
                    raise SQLError(
                        server_errors.WRITE_CONFLICT,
                        f"Write conflict, txnStartTS={self.ts}, table={each.table.full_name}:"
                        " another transaction changed a row [try again later]",
                    )

    def tables(self) -> list[tuple[Table, list[RowChange]]]:
        """Return the changes that change something, by table."""
        found = [
            (each.table, [one for one in each.rows.values() if one.before != one.after])
            for each in self._tables.values()
        ]
        return [(table, rows) for table, rows in found if rows]

    def _rows_of(self, table: Table) -> dict[Key, RowChange]:
        known = self._tables.get(table.id)
        return known.rows if known is not None else {}

    def _now(self, table: Table, key: Key) -> Row | None:
        change = self._rows_of(table).get(key)
        return self._versions.row_at(table, key, self.ts) if change is None else change.after

    def _set(self, table: Table, key: Key, row: Row | None) -> None:
        rows = self._tables[table.id].rows
        before = rows[key].before if key in rows else self._versions.row_at(table, key, self.ts)
        rows[key] = RowChange(before, row)

    def _check_unique(self, table: Table) -> None:
        places = {column.name: number for number, column in enumerate(table.stored_columns)}
        keys = [key for key in table.unique_keys() if set(key) <= places.keys()]
        seen: dict[tuple[str, ...], set[tuple[Any, ...]]] = {key: set() for key in keys}
        forms = {key: [values.sorter(table.stored_columns[places[n]]) for n in key] for key in keys}
        for _, row in self.rows(table):
            for key in keys:
                found = [row[places[name]] for name in key]
                if None in found:
                    continue
                value = tuple(form(each) for form, each in zip(forms[key], found, strict=True))
                if value in seen[key]:
                    raise _duplicate(table, ", ".join(key))
                seen[key].add(value)


def column_names(table: Table) -> list[str]:
    """Return the names of the values of a row."""
    return [column.name for column in table.stored_columns] + [ROWID_NAME] * (
        table.handle_kind == "heap"
    )


def row_values(table: Table, row: Row) -> dict[str, Any]:
    """Return a row's values by column."""
    return dict(zip(column_names(table), row, strict=True))


def mutations(changes: Sequence[tuple[Table, Sequence[RowChange]]]) -> list[Any]:
    """Return the changes as a binlog's mutations: by table deletes, updates, then inserts."""
    found = []
    for table, rows in changes:
        mutation = pb.binlog.TableMutation(table_id=table.id)
        for one in sorted(rows, key=lambda one: (one.before is None) - (one.after is None)):
            before, after = (
                None if row is None else row_values(table, row) for row in (one.before, one.after)
            )
            if after is None and before is not None:
                mutation.deleted_rows.append(encode_delete(table, before))
                mutation.sequence.append(pb.binlog.DeleteRow)
            elif before is None and after is not None:
                mutation.inserted_rows.append(encode_insert(table, after))
                mutation.sequence.append(pb.binlog.Insert)
            elif before is not None and after is not None:
                mutation.updated_rows.append(encode_update(table, before, after))
                mutation.sequence.append(pb.binlog.Update)
        found.append(mutation)
    return found


def stored_value(column: Column, literal: Any) -> Any:
    """Return what a column stores of an SQL value; moments are in UTC.

    Raises SQLError for what doesn't fit.
    """
    if literal is None:
        if column.not_null:
            raise SQLError(server_errors.NOT_NULL, f"Column '{column.name}' cannot be null")
        return None
    try:
        return _converted(column, literal)
    except (ValueError, ArithmeticError, LookupError) as error:
        raise SQLError(
            server_errors.INCORRECT_VALUE,
            f"Incorrect value for column '{column.name}': {_text(literal)}",
        ) from error


def _converted(column: Column, literal: Any) -> Any:
    kind = column.kind
    if kind == "bit":
        return int.from_bytes(literal, "big") if isinstance(literal, bytes) else int(literal)
    if kind in ("text", "binary"):
        return parse_text(column, literal if isinstance(literal, bytes) else _text(literal))
    text = _text(literal)
    if kind in ("enum", "set"):
        names = text.split(",") if kind == "set" and text else [text] if text else []
        for name in names:
            column.elems.index(name)
    return parse_text(column, text)


def _text(literal: Any) -> str:
    if isinstance(literal, bytes):
        return literal.decode("utf-8", "surrogateescape")
    return literal if isinstance(literal, str) else values.number_text(literal)


def _duplicate(table: Table, key: str) -> SQLError:
    return SQLError(server_errors.DUPLICATE_ENTRY, f"Duplicate entry for key '{table.name}.{key}'")
