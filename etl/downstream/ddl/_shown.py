"""Read columns as the server shows them, and compare with a temporary table's.

How a definition looks there is asked of the server, by that table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.formats.table_fallbacks import as_stored_downstream
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl._generate import column_definition
from sluice.etl.downstream.ddl._new_column import bare_column
from sluice.etl.downstream.ddl._session import ddl_session
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column


class ShownColumn(NamedTuple):
    """A column in SHOW COLUMNS; `collation` is "" where it holds no text."""

    sql_type: str
    collation: str
    nullable: bool

    @property
    def data_type(self) -> str:
        """Return the type's name alone, as in ``varchar``."""
        return self.sql_type.partition("(")[0].partition(" ")[0].lower()

    def __str__(self) -> str:
        return " ".join(
            filter(None, (self.sql_type, self.collation, "NULL" if self.nullable else "NOT NULL"))
        )


def shown_columns(session: MySQLSession, name: str) -> dict[str, ShownColumn]:
    """Return the columns of a table by their folded names; `name` is quoted."""
    rows = session.query(f"SHOW FULL COLUMNS FROM {name}")
    return {
        folded(str(row[0])): ShownColumn(str(row[1]), str(row[2] or ""), row[3] == "YES")
        for row in rows
    }


@contextlib.contextmanager
def temporary_table(session: MySQLSession, schema: str, name: str, columns: str) -> Iterator[str]:
    """Make a temporary table for as long as the block runs and yield its quoted name.

    `columns`: the SQL behind the name.
    """
    quoted = f"{quote_name(schema)}.{quote_name(name)}"
    session.execute(f"CREATE TEMPORARY TABLE {quoted} {columns}")
    try:
        yield quoted
    finally:
        session.execute(f"DROP TEMPORARY TABLE {quoted}")


def is_of_type(session: MySQLSession, schema: str, column: Column, actual: ShownColumn) -> bool:
    """Return whether a column there has the type of `column`, or another that holds the same."""
    held = as_stored_downstream(column, actual.data_type, generated=False)
    definition = column_definition(bare_column(held, column.name), session.dialect)
    with (
        ddl_session(session),
        temporary_table(session, schema, f"sluice_type_{column.id}", f"({definition})") as name,
    ):
        (shown,) = shown_columns(session, name).values()
    return shown.sql_type == actual.sql_type
