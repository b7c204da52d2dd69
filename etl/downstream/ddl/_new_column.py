"""Add a column of another type beside the one that it replaces, and exchange the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.changes.formats.table_fallbacks import widened_strings, without_defaults
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._alter import drop_foreign_keys
from sluice.etl.downstream.ddl._conversions import Conversion
from sluice.etl.downstream.ddl._generate import column_definition, index_definition
from sluice.etl.downstream.ddl._session import ddl_session
from sluice.etl.downstream.ddl._state import actual_columns
from sluice.tidb import column_types
from sluice.tidb.folded import folded
from sluice.tidb.schema import STATE_PUBLIC, Column

_IN_FOREIGN_KEY = server_errors.IN_FOREIGN_KEY | {server_errors.RENAME_FAILED}


class NewColumn:
    """The column that a conversion makes. Every method raises DownstreamError."""

    def __init__(self, session: MySQLSession, conversion: Conversion) -> None:
        self._session = session
        self._conversion = conversion

    def exists(self) -> bool:
        """Return whether the new column is there beside the old one."""
        return folded(self._conversion.scratch) in {
            folded(c.name) for c in actual_columns(self._session, self._conversion.change.before)
        }

    def add(self) -> None:
        """Add the new column beside the old one, under the name of the scratch."""
        table = quote_table(self._conversion.change.before)
        with ddl_session(self._session):
            for column in self._forms():
                scratch = bare_column(column, self._conversion.scratch)
                try:
                    self._session.execute(
                        f"ALTER TABLE {table} ADD COLUMN"
                        f" {column_definition(scratch, self._session.dialect)}"
                    )
                    return
                except DownstreamError as error:
                    if error.code not in server_errors.TOO_LONG:
                        raise
                    refused = error
            raise refused

    def replace_old(self) -> list[str]:
        """Replace the old column by the new one in one statement.

        The new column gets its name, place, definition and indexes.
        """
        change = self._conversion.change
        names = [column.name for column in actual_columns(self._session, change.before)]
        place = names.index(next(n for n in names if folded(n) == folded(change.old.name)))
        where = f"AFTER {quote_name(names[place - 1])}" if place else "FIRST"
        indexes = self._indexes()
        warnings: list[str] = []
        refused: DownstreamError | None = None
        with ddl_session(self._session):
            for column in self._definitions():
                clauses = [
                    *(drop for drop, _ in indexes),
                    f"DROP COLUMN {quote_name(change.old.name)}",
                    (
                        f"CHANGE COLUMN {quote_name(self._conversion.scratch)}"
                        f" {column_definition(column, self._session.dialect)} {where}"
                    ),
                    *(add for _, add in indexes if add),
                ]
                statement = f"ALTER TABLE {quote_table(change.before)} {', '.join(clauses)}"
                try:
                    self._session.execute(statement)
                    return warnings
                except DownstreamError as error:
                    if error.transient:
                        raise
                    if error.code in _IN_FOREIGN_KEY and not warnings:
                        warnings = drop_foreign_keys(self._session, change.before)
                        self._session.execute(statement)
                        return warnings
                    refused = refused or error
        assert refused is not None
        raise refused

    def _forms(self) -> list[Column]:
        """Return the new column, and the form that a table too wide for it holds."""
        new = self._conversion.change.new
        wide = next(
            c for c in widened_strings(self._conversion.change.after).columns if c.id == new.id
        )
        return [new] if wide == new else [new, wide]

    def _definitions(self) -> list[Column]:
        """Return definitions of the new column under its final name, the fullest one first.

        The later ones lack what servers may refuse; the last has nothing but its type.
        """
        change = self._conversion.change
        forms = [replace(column, name=change.old.name) for column in self._forms()]
        simple = next(c for c in without_defaults(change.after).columns if c.id == change.new.id)
        bare_form = bare_column(forms[0], change.old.name)
        found = [
            *forms,
            replace(simple, name=change.old.name),
            replace(bare_form, flag=bare_form.flag | change.new.flag & column_types.FLAG_NOT_NULL),
        ]
        return [column for n, column in enumerate(found) if column not in found[:n]]

    def _indexes(self) -> list[tuple[str, str]]:
        """Return (clause that drops, clause that adds again) for every index of the column.

        One that the DDL drops isn't added.
        """
        change = self._conversion.change
        rows = self._session.query(
            "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, NON_UNIQUE, INDEX_TYPE FROM"
            " information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY"
            " INDEX_NAME, SEQ_IN_INDEX",
            (change.before.schema_name, change.before.name),
        )
        found: dict[str, list[tuple[Any, ...]]] = {}
        for name, *rest in rows:
            found.setdefault(str(name), []).append(tuple(rest))
        return [
            (_drop_clause(name), _add_index_clause(self._session, self._conversion, name, parts))
            for name, parts in found.items()
            if any(folded(str(part[0])) == folded(change.old.name) for part in parts)
        ]


def bare_column(column: Column, name: str) -> Column:
    """Return a column of the same type, NULL allowed, and nothing else."""
    flag = column.flag & ~(
        column_types.FLAG_NOT_NULL
        | column_types.FLAG_ON_UPDATE_NOW
        | column_types.FLAG_AUTO_INCREMENT
    )
    return replace(
        column, name=name, flag=flag, default=None, default_is_expr=False, comment="", hidden=False
    )


def _drop_clause(name: str) -> str:
    return "DROP PRIMARY KEY" if name.upper() == "PRIMARY" else f"DROP INDEX {quote_name(name)}"


def _add_index_clause(
    session: MySQLSession, conversion: Conversion, name: str, parts: Sequence[tuple[Any, ...]]
) -> str:
    """Return the clause that restores an index, with the column's part as long as after the DDL.

    "" if the index is gone then.
    """
    change = conversion.change
    after = next(
        (
            i
            for i in change.after.indexes
            if i.state == STATE_PUBLIC
            and (folded(i.name) == folded(name) or (i.primary and name == "PRIMARY"))
        ),
        None,
    )
    if after is None:
        return ""
    lengths = {folded(column): length for column, _, length in after.columns}
    columns = tuple(
        (
            str(column),
            0,
            (
                lengths.get(folded(change.new.name), -1)
                if folded(str(column)) == folded(change.old.name)
                else int(length or -1)
            ),
        )
        for column, length, _, _ in parts
    )
    index = replace(
        after,
        name=name,
        columns=columns,
        unique=not int(parts[0][2]),
        primary=name.upper() == "PRIMARY",
    )
    table = replace(
        change.before,
        columns=tuple(
            replace(change.new, name=c.name) if c.id == change.old.id else c
            for c in change.before.columns
        ),
    )
    definitions, _ = index_definition(table, index, session.dialect)
    return ", ".join(f"ADD {definition}" for definition in definitions)
