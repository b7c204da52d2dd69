"""Execute DDL of databases, views and sequences."""

from __future__ import annotations

from sluice.etl.changes.formats.ddl_text import charset_name, collation_name
from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.ddl._generate import create_view, sequence_statement
from sluice.etl.downstream.ddl._limits import is_unnameable
from sluice.etl.downstream.ddl._recycle import RecycleBin
from sluice.tidb.ddl_actions import Action


def change_schemas(session: MySQLSession, ddl: ScopedDdl) -> list[str]:
    """Create the databases of a CREATE DATABASE, or alter those of another job."""
    for schema in ddl.effect.schemas.values():
        if schema is None:
            continue
        dialect = session.dialect
        options = (
            f" CHARACTER SET {charset_name(schema.charset)} COLLATE"
            f" {collation_name(schema.collate, dialect)}"
            if schema.charset
            else ""
        )
        verb = (
            "CREATE DATABASE IF NOT EXISTS"
            if ddl.type == Action.CREATE_SCHEMA
            else "ALTER DATABASE"
        )
        session.execute(f"{verb} {quote_name(schema.name)}{options}")
    return []


def drop_schema(session: MySQLSession, recycle: RecycleBin, ddl: ScopedDdl) -> list[str]:
    """Drop a database, its tables into the recycle bin; return why it stays, if it does."""
    warnings: list[str] = []
    for table_id, table in ddl.before.items():
        if table is not None and table.is_base_table:
            warnings += recycle.drop(table.schema_name, table.name, table_id, ddl.commit_ts)
    schema = ddl.schema_name
    if ddl.only_if_empty:
        for view in ddl.before.values():
            if view is not None and (view.is_view or view.is_sequence):
                session.execute(
                    f"DROP {'VIEW' if view.is_view else 'SEQUENCE'} IF EXISTS {quote_table(view)}"
                )
        left = session.query(
            "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", (schema,)
        )
        if int(left[0][0]):
            return [
                *warnings,
                (
                    f"the database {schema} stays: it holds tables that don't come from this"
                    " one upstream"
                ),
            ]
    session.execute(f"DROP DATABASE IF EXISTS {quote_name(schema)}")
    return warnings


def create_optional(session: MySQLSession, ddl: ScopedDdl) -> list[str]:
    """Create views or sequences, except those that the downstream rejects.

    They hold no rows.
    """
    warnings = []
    for made in ddl.effect.tables.values():
        if made is None:
            continue
        if not session.dialect.has_all_names and is_unnameable(made.name):
            warnings.append(
                f"left out: {made.full_name}: this server holds no name with characters beyond"
                " U+FFFF"
            )
            continue
        if made.sequence and not session.dialect.has_sequences:
            warnings.append(f"left out: {made.full_name}: this server has no sequences")
            continue
        verb = "ALTER" if ddl.type == Action.ALTER_SEQUENCE else "CREATE"
        try:
            session.execute(create_view(made) if made.view else sequence_statement(verb, made))
        except DownstreamError as error:
            if error.transient:
                raise
            warnings.append(f"left out: {made.full_name}: {error.message}")
    return warnings


def drop_optional(session: MySQLSession, ddl: ScopedDdl) -> list[str]:
    """Drop a view or a sequence; return why it stays, if the downstream rejects that."""
    kind = "VIEW" if ddl.type == Action.DROP_VIEW else "SEQUENCE"
    known = next((t for t in ddl.before.values() if t), None)
    name = (
        quote_table(known)
        if known
        else f"{quote_name(ddl.schema_name)}.{quote_name(ddl.table_name)}"
    )
    dialect = session.dialect
    if (kind == "SEQUENCE" and not dialect.has_sequences) or (
        not dialect.has_all_names and is_unnameable(known.name if known else ddl.table_name)
    ):
        return []  # it was excluded when it was created
    try:
        session.execute(f"DROP {kind} IF EXISTS {name}")
        return []
    except DownstreamError as error:
        if error.transient:
            raise
        return [f"{kind} {name} was not dropped: {error.message}"]
