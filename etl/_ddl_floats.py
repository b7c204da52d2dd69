"""FLOAT and DOUBLE columns that become text: servers spell the numbers in their own ways (`1e21`, six digits of a FLOAT), TiDB in the
shortest plain digits. So the column is text in between, where every number is spelled as TiDB does, before the statement runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from etl._ddl_columns import changed_columns
from etl._ddl_generate import clock_columns, quote_text
from etl._sql_text import quote_name, quote_table
from etl.mysql import MySQLSession
from upstream.schema import Column, Table

_BETWEEN = "VARCHAR(400) CHARACTER SET ascii COLLATE ascii_bin"
_BATCH = 500


def becomes_text(ddl: Mapping[str, Any]) -> bool:
    """Whether the DDL makes text of a column of floating point numbers."""
    return any(True for _ in _columns(ddl))


def spell(session: MySQLSession, ddl: Mapping[str, Any]) -> None:
    """Make such columns text with TiDB's spelling; may be repeated after it was interrupted anywhere. Raises DownstreamError."""
    for table, column in _columns(ddl):
        found = session.query(
            "SELECT DATA_TYPE, COLUMN_TYPE, COALESCE(COLLATION_NAME, '') FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND "
            "TABLE_NAME = %s AND COLUMN_NAME = %s",
            (table.schema_name, table.name, column.name),
        )
        kind, whole, collation = (str(part) for part in found[0]) if found else ("", "", "")
        target, name = quote_table(table), quote_name(column.name)
        if kind in ("float", "double"):
            null = "NOT NULL" if column.not_null else "NULL"
            session.execute(f"ALTER TABLE {target} MODIFY COLUMN {name} DOUBLE {null}")  # a FLOAT's exact value
            session.execute(f"ALTER TABLE {target} MODIFY COLUMN {name} {_BETWEEN} {null}")
        elif (whole, collation) != ("varchar(400)", "ascii_bin"):
            continue
        said = [str(text) for (text,) in session.query(f"SELECT DISTINCT {name} FROM {target} WHERE {name} IS NOT NULL")]
        changes = [(text, new) for text in said if (new := _spelling(column, text)) != text]
        still = "".join(f", {own} = {own}" for own in clock_columns(table))
        for first in range(0, len(changes), _BATCH):
            some = [(quote_text(text), quote_text(new)) for text, new in changes[first : first + _BATCH]]
            cases = " ".join(f"WHEN {text} THEN {new}" for text, new in some)
            session.execute(
                f"UPDATE {target} SET {name} = CASE {name} {cases} END{still} WHERE {name} IN ({', '.join(text for text, _ in some)})"
            )


def _spelling(column: Column, text: str) -> str:
    number = np.float32(text) if column.kind == "float" else np.float64(text)
    return np.format_float_positional(number, unique=True, trim="-")


def _columns(ddl: Mapping[str, Any]) -> Iterator[tuple[Table, Column]]:
    for change in changed_columns(ddl):
        if change.old.kind in ("float", "double") and not change.old.generated and change.new.kind == "text":
            yield change.before, change.old
