"""ALTER TABLE statements made from what the downstream has and what the table is to be, where TiDB's text can't be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from etl._ddl_generate import column_definition, index_definition, partition_change, partition_clause
from etl._ddl_session import tables_of
from etl._ddl_state import actual_columns
from etl._sql_text import quote_name, quote_table
from etl.mysql import MySQLSession
from upstream.schema import STATE_PUBLIC, Table

_TRUNCATE_PARTITION = 23


def alternative(
    session: MySQLSession, ddl: Mapping[str, Any], form: Callable[[Table], Table] | None = None
) -> tuple[list[str] | None, list[str]]:
    """(statements, warnings) that add, drop and define columns, indexes and partitions until the tables are as after the DDL, from
    what they are. None: there is no such way. `form`: what to make of a table before, see `etl._ddl_generate`."""
    before = tables_of(ddl, "before")
    statements: list[str] = []
    warnings: list[str] = []
    for table_id, table in tables_of(ddl, "effect").items():
        if table is None or not table.is_base_table:
            return None, []
        old = before.get(table_id)
        change = ""
        if int(ddl["type"]) == _TRUNCATE_PARTITION or (old is not None and partition_clause(old) != partition_clause(table)):
            if old is None or bool(partition_clause(old)) != bool(partition_clause(table)):
                return None, []
            change = partition_change(old, table, int(ddl["type"]) == _TRUNCATE_PARTITION)
        clauses = [change] if change else _clauses(session, old, form(table) if form else table, warnings)
        if clauses is None:
            return None, []
        apart = _apart(clauses, session.dialect.indexes_new_columns)
        statements += [f"ALTER TABLE {quote_table(table)} {', '.join(some)}" for some in apart]
    return (statements, warnings) if statements or warnings else (None, [])


def _apart(clauses: list[str], together: bool) -> list[list[str]]:
    """The clauses of each statement: in one, unless new columns have to be there before the rest."""
    columns = [] if together else [clause for clause in clauses if clause.startswith("ADD COLUMN ")]
    rest = [clause for clause in clauses if clause not in columns]
    return [some for some in (columns, rest) if some]


def _clauses(session: MySQLSession, old: Table | None, table: Table, warnings: list[str]) -> list[str] | None:
    dialect = session.dialect
    actual = {column.name.lower() for column in actual_columns(session, table)}
    if not actual:
        return None
    old_columns = {c.name.lower(): c for c in old.columns} if old else {}
    wanted = [c for c in table.columns if c.public and not c.hidden]
    if any(c.id in {o.id for o in old_columns.values()} and c.name.lower() not in old_columns for c in wanted):
        return None  # a rename: add and drop would lose its values
    clauses = [
        f"{'MODIFY' if c.name.lower() in actual else 'ADD'} COLUMN {column_definition(c, dialect)}"
        for c in wanted
        if c.name.lower() not in actual or (old is not None and old_columns.get(c.name.lower()) != c)
    ]
    kept = {c.name.lower() for c in wanted}
    clauses += [f"DROP COLUMN {quote_name(c.name)}" for n, c in old_columns.items() if n not in kept and n in actual]
    found = {
        str(name).lower()
        for (name,) in session.query(
            "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (table.schema_name, table.name),
        )
    }
    public = {("primary" if i.primary else i.name.lower()): i for i in table.indexes if i.state == STATE_PUBLIC}
    for name, index in public.items():
        if name not in found:
            definition, warning = index_definition(table, index, dialect)
            clauses += [f"ADD {definition}"] if definition else []
            warnings += [warning] if warning else []
    gone = {i.name.lower(): i.name for i in old.indexes if not i.primary and i.name.lower() not in public} if old else {}
    clauses += [f"DROP INDEX {quote_name(gone[name])}" for name in sorted(gone) if name in found]
    return clauses


def drop_foreign_keys(session: MySQLSession, table: Table) -> list[str]:
    """Drop every foreign key of a table and on it; what was dropped, as warnings. TiDB names keys in its own way, so a DDL that
    drops one upstream may leave it here, in the way of the next statement; rows are never checked against it."""
    found = session.query(
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE "
        "(CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s) OR (UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s)",
        (table.schema_name, table.name) * 2,
    )
    warnings = []
    for schema, name, key in ((str(a), str(b), str(c)) for a, b, c in found):
        session.execute(f"ALTER TABLE {quote_name(schema)}.{quote_name(name)} DROP FOREIGN KEY {quote_name(key)}")
        warnings.append(f"foreign key {key} of {schema}.{name} dropped: it was in the way")
    return warnings
