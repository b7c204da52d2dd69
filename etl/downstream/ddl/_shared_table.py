"""Handle DDL of a table that several sources share downstream: the first source executes it.

Each of the others brings the same statement later.
"""

from __future__ import annotations

from sluice.etl.changes.formats.sql_text import quote_table
from sluice.etl.changes.formats.table_fallbacks import (
    with_server_computed,
    without_foreign_keys,
    without_partitions,
)
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl._conversions import conversions
from sluice.etl.downstream.ddl._detect_executed import was_executed
from sluice.etl.downstream.ddl._generate import column_definition, create_table
from sluice.etl.downstream.ddl._new_column import bare_column
from sluice.etl.downstream.ddl._shown import shown_columns, temporary_table
from sluice.tidb.ddl_actions import Action
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table

_CREATE_ACTIONS = {Action.CREATE_TABLE, Action.CREATE_TABLES}


def already_executed(session: MySQLSession, ddl: ScopedDdl) -> bool:
    """Return whether the table that sources share is already as the statement leaves it."""
    kind = ddl.type
    if kind in _CREATE_ACTIONS:
        return False
    if kind == Action.ADD_PARTITION:
        return all(
            _partitions(table) <= _found_partitions(session, table)
            for table in ddl.effect.tables.values()
            if table
        )
    if conversions(ddl):  # names don't show it
        return all(
            not structure_differences(session, table)
            for table in ddl.effect.tables.values()
            if table
        )
    return was_executed(session, ddl) is True


def add_lacking_columns(session: MySQLSession, table: Table) -> None:
    """Add the columns of a new source that the downstream's table lacks, NULL in all rows."""
    there = shown_columns(session, quote_table(table))
    for column in table.columns:
        if column.public and not column.hidden and folded(column.name) not in there:
            definition = column_definition(bare_column(column, column.name), session.dialect)
            session.execute(f"ALTER TABLE {quote_table(table)} ADD COLUMN {definition}")


def structure_differences(
    session: MySQLSession, table: Table, *, may_lack: bool = False
) -> list[str]:
    """Describe how the table's columns and unique keys differ from the existing downstream table.

    [] if its rows fit and are identified in the same way. `may_lack`: columns of the existing one
    in which rows can be NULL needn't be there, or may be NOT NULL.
    """
    statement, _ = create_table(
        without_foreign_keys(without_partitions(with_server_computed(table))), session.dialect
    )
    definition = statement.removeprefix(f"CREATE TABLE {quote_table(table)}")
    with temporary_table(
        session, table.schema_name, f"sluice_same_{table.id}", definition
    ) as check:
        here, there = shown_columns(session, check), shown_columns(session, quote_table(table))
        keys_here, keys_there = (
            _unique_keys(session, check),
            _unique_keys(session, quote_table(table)),
        )
    found = [
        f"column {name} is {there.get(name, 'missing')}, {kind} expected"
        for name, kind in here.items()
        if there.get(name) not in (kind, kind._replace(nullable=True) if may_lack else kind)
    ]
    found += [
        f"column {name} ({kind}) is one too many"
        for name, kind in there.items()
        if name not in here and not (may_lack and kind.nullable)
    ]
    found += [
        f"unique key on {', '.join(key)} is missing" for key in sorted(keys_here - keys_there)
    ]
    return found + [
        f"unique key on {', '.join(key)} is one too many" for key in sorted(keys_there - keys_here)
    ]


def _unique_keys(session: MySQLSession, name: str) -> set[tuple[str, ...]]:
    keys: dict[str, dict[int, str]] = {}
    for row in session.query(f"SHOW INDEX FROM {name}"):
        if not int(row[1]):
            keys.setdefault(str(row[2]), {})[int(row[3])] = folded(str(row[4]))
    return {tuple(columns[n] for n in sorted(columns)) for columns in keys.values()}


def _partitions(table: Table) -> set[str]:
    definitions = (table.partition or {}).get("definitions") or ()
    return {
        folded(str(d["name"]["O"] if isinstance(d["name"], dict) else d["name"]))
        for d in definitions
    }


def _found_partitions(session: MySQLSession, table: Table) -> set[str]:
    rows = session.query(
        "SELECT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = %s AND"
        " TABLE_NAME = %s AND PARTITION_NAME IS NOT NULL",
        (table.schema_name, table.name),
    )
    return {folded(str(name)) for (name,) in rows}
