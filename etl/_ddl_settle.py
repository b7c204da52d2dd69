"""What must hold downstream after a DDL job, made true whatever the statement did: columns, collations, the values of existing rows.

Everything here may be repeated after a crash, as long as no later change has been applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl._ddl_generate import column_definition, table_options
from etl._ddl_session import tables_of
from etl._ddl_state import actual_columns, wrong_collations
from etl._sql_text import literal_column, quote_name, quote_table
from etl.mysql import MySQLSession
from upstream.codec.column_value import missing_value
from upstream.codec.columnar import arrow_type, constant
from upstream.schema import Column, Table

_ON_UPDATE_NOW = 8192
# What a server fills in for existing rows may differ for these: its clock, its time zone, its idea of an empty document.
_CHECKED_KINDS = {"timestamp", "datetime", "date", "time", "json"}


class UnsettledError(Exception):
    """The downstream table can't be brought to what the upstream has; names table and columns."""


def settle(session: MySQLSession, ddl: Mapping[str, Any]) -> list[str]:
    """Check and repair the tables a DDL job leaves behind; warnings. Raises UnsettledError, DownstreamError."""
    warnings: list[str] = []
    before = tables_of(ddl, "before")
    for table_id, table in tables_of(ddl, "effect").items():
        if table is not None and table.is_base_table:
            warnings += _settle_table(session, before.get(table_id), table)
    return warnings


def _settle_table(session: MySQLSession, old: Table | None, table: Table) -> list[str]:
    warnings = []
    actual = actual_columns(session, table)
    names = {column.name.lower() for column in actual}
    missing = [c.name for c in table.writable_columns if c.name.lower() not in names]
    if missing:
        raise UnsettledError(f"{table.full_name} lacks {', '.join(missing)} downstream afterwards")
    kept = {c.name.lower() for c in table.columns if c.public}
    gone = [c.name for c in old.columns if c.public and not c.hidden and c.name.lower() in names - kept] if old else []
    if gone:
        session.execute(f"ALTER TABLE {quote_table(table)} {', '.join(f'DROP COLUMN {quote_name(name)}' for name in gone)}")
        warnings.append(f"{table.full_name}: {', '.join(gone)} dropped apart")
    dialect = session.dialect
    wrong = wrong_collations(table, actual, dialect)
    if wrong:
        by_name = {column.name: column for column in table.columns}
        changes = ", ".join(f"MODIFY COLUMN {column_definition(by_name[n], dialect)}" for n in wrong)
        session.execute(f"ALTER TABLE {quote_table(table)} {changes}, {table_options(table, dialect)}")
        warnings.append(f"{table.full_name}: collation of {', '.join(wrong)} set to the upstream's")
    checked = _CHECKED_KINDS - ({"json"} if dialect.has_json_type else set())  # there nothing but 'null' is filled in, as upstream
    added = [column for column in _added(old, table) if column.kind in checked] if old is not None else []
    if added:
        _fill(session, table, added)
    return warnings


def _added(old: Table, table: Table) -> list[Column]:
    """Columns that existing rows have been given a value for. A changed type gives a new id under the old name: not one of these."""
    ids, names = {c.id for c in old.columns if c.public}, {c.name.lower() for c in old.columns if c.public}
    return [c for c in table.writable_columns if c.id not in ids and c.name.lower() not in names]


def _fill(session: MySQLSession, table: Table, columns: list[Column]) -> None:
    """Give existing rows the values that TiDB reads where a row is older than the column."""
    values = {
        quote_name(c.name).encode(): literal_column(constant(missing_value(c), arrow_type(c), 1), c)[0].as_py() for c in columns
    }
    # Columns that move with the clock at every update must not.
    still = [quote_name(c.name).encode() for c in table.writable_columns if c.flag & _ON_UPDATE_NOW and c not in columns]
    changes = [b"%b = %b" % pair for pair in values.items()] + [b"%b = %b" % (name, name) for name in still]
    as_wanted = b" AND ".join(b"%b <=> %b" % pair for pair in values.items())
    session.execute(b"UPDATE %b SET %b WHERE NOT (%b)" % (quote_table(table).encode(), b", ".join(changes), as_wanted))
