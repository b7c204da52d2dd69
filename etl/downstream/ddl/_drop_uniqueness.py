"""Relax unique keys that the upstream has given up, ahead of the DDL that drops them."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.steps import DroppedUniqueIndex
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.tidb.folded import folded


def drop_uniqueness(
    session: MySQLSession, schema: str, table: str, indexes: Sequence[DroppedUniqueIndex]
) -> list[str]:
    """Let these indexes have values twice; the names of those that didn't yet.

    Commits. A primary key goes, any other index stays under its name, so that the DDL finds it. May
    be repeated. Raises DownstreamError.
    """
    rows = session.query(
        "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND"
        " TABLE_NAME = %s AND NON_UNIQUE = 0",
        (schema, table),
    )
    unique = {folded(str(name)) for (name,) in rows}
    wanted = [index for index in indexes if folded(index.name) in unique]
    alter = f"ALTER TABLE {quote_name(schema)}.{quote_name(table)}"
    for index in wanted:
        if index.name == "PRIMARY":
            session.execute(f"{alter} DROP PRIMARY KEY")
            continue
        name = quote_name(index.name)
        columns = ", ".join(
            f"{quote_name(column)}{f'({length})' if length > 0 else ''}"
            for column, length in index.columns
        )
        # apart: TiDB takes no two changes of one index in a statement
        session.execute(f"{alter} DROP INDEX {name}")
        try:
            session.execute(f"{alter} ADD INDEX {name} ({columns})")
        except DownstreamError as error:
            if error.code not in server_errors.TOO_LONG:
                raise
            # Of a unique index the server kept hashes; without one the DDL finds nothing to drop.
    return [index.name for index in wanted]
