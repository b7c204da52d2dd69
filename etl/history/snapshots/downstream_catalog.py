"""Read the downstream server's tables, and how each differs from the upstream's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from sluice.tidb.folded import folded

__all__ = ["DownstreamTableInfo", "mismatch", "read_downstream_tables"]

_TABLES = (
    "SELECT t.TABLE_SCHEMA, t.TABLE_NAME, t.ENGINE, COALESCE(e.TRANSACTIONS, 'YES'),"
    " COALESCE(t.DATA_LENGTH, 0) FROM information_schema.TABLES t LEFT JOIN"
    " information_schema.ENGINES e ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA IN ({names})"
)
_COLUMNS = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, CHARACTER_SET_NAME, IS_NULLABLE FROM"
    " information_schema.COLUMNS WHERE TABLE_SCHEMA IN ({names})"
)


@dataclass(frozen=True, slots=True)
class DownstreamTableInfo:
    """A table that exists downstream.

    `bytes` from the server's statistics; `columns` by name in lower case: the character set, "" if
    it has none, and whether NULL may be.
    """

    engine: str
    has_transactions: bool
    bytes: int
    columns: Mapping[str, tuple[str, bool]]


def mismatch(place: DownstreamTable, there: DownstreamTableInfo | None, address: str) -> str:
    """Return why a table can't be read as the upstream's, "" if it can."""
    if there is None:
        return f"{place.full_name} is not on {address}"
    if not there.has_transactions:
        return (
            f"{place.full_name} on {address} is in the storage engine {there.engine}, which has no"
            " snapshots"
        )
    missing = [c.name for c in place.table.writable_columns if folded(c.name) not in there.columns]
    return f"{place.full_name} on {address} has no column {', '.join(missing)}" if missing else ""


def read_downstream_tables(
    session: MySQLSession, schemas: set[str]
) -> dict[tuple[str, str], DownstreamTableInfo]:
    """Return tables by their names of schema and table in lower case. Raises DownstreamError."""
    if not schemas:
        return {}
    names = ", ".join(["%s"] * len(schemas))
    columns: dict[tuple[str, str], dict[str, tuple[str, bool]]] = {}
    for schema, name, column, charset, nullable in session.query(
        _COLUMNS.format(names=names), sorted(schemas)
    ):
        of_table = columns.setdefault(_lower(schema, name), {})
        of_table[str(column).lower()] = (str(charset or ""), str(nullable) == "YES")
    return {
        _lower(schema, name): DownstreamTableInfo(
            str(engine),
            str(transactions) == "YES",
            int(size),
            columns.get(_lower(schema, name), {}),
        )
        for schema, name, engine, transactions, size in session.query(
            _TABLES.format(names=names), sorted(schemas)
        )
    }


def _lower(schema: object, name: object) -> tuple[str, str]:
    return folded(str(schema)), folded(str(name))
