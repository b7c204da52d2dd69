"""Build the DDL that creates the downstream's empty databases and tables.

They are CREATE statements as if the upstream had sent them. They go through the rules and the
executor that replicated DDL goes through, so that a table is created in the same way wherever it
comes from.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.etl.changes.rules import Filter, Routes, scope_ddl
from sluice.etl.changes.steps import ScopedDdl
from sluice.tidb.column_types import FLAG_AUTO_INCREMENT
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import STATE_PUBLIC, Schema, Table


def create_schema(schema: Schema, ts: int) -> DdlJob:
    """Return a CREATE DATABASE."""
    return DdlJob(
        ts,
        ts,
        schema_state=STATE_PUBLIC,
        query=f"CREATE DATABASE {schema.name}",
        type=Action.CREATE_SCHEMA,
        schema_name=schema.name,
        effect=DdlEffect({schema.id: schema}),
    )


def create_object(table: Table, ts: int) -> DdlJob:
    """Return a CREATE TABLE, VIEW or SEQUENCE."""
    kind = (
        Action.CREATE_VIEW
        if table.is_view
        else Action.CREATE_SEQUENCE
        if table.is_sequence
        else Action.CREATE_TABLE
    )
    return _job(kind, ts, f"{kind.name.replace('_', ' ')} {table.full_name}", table)


def add_indexes_and_keys(bare: Table, table: Table, ts: int) -> list[DdlJob]:
    """Return the DDL that adds the secondary indexes, then the foreign keys, that `bare` lacks."""
    indexed = replace(table, foreign_keys=())
    steps = [(Action.ADD_INDEX, bare, indexed), (Action.ADD_FOREIGN_KEY, indexed, table)]
    return [
        replace(
            _job(kind, ts, f"ALTER TABLE {table.full_name} ADD ...", after),
            before={before.id: before},
        )
        for kind, before, after in steps
        if before != after
    ]


def bare_table(table: Table, *, indexes: bool) -> Table:
    """Return the table without foreign keys, and if `indexes` without the secondary indexes.

    What begins with an AUTO_INCREMENT column stays, servers want it indexed.
    """
    bare = replace(table, foreign_keys=())
    if not indexes:
        return bare
    counting = {column.name for column in table.columns if column.flag & FLAG_AUTO_INCREMENT}
    kept = tuple(
        index for index in table.indexes if index.primary or index.columns[0][0] in counting
    )
    return replace(bare, indexes=kept)


def scoped_statement(ddl: DdlJob, filters: Filter, routes: Routes) -> ScopedDdl | None:
    """Return the statement as the rules want it downstream, None if they don't.

    Raises ScopeError.
    """
    before = {table_id: table for table_id, table in ddl.before.items() if table is not None}
    return scope_ddl(ddl, before, filters, routes).ddl


def _job(kind: Action, ts: int, query: str, table: Table) -> DdlJob:
    return DdlJob(
        ts,
        ts,
        schema_state=STATE_PUBLIC,
        query=query,
        type=kind,
        schema_name=table.schema_name,
        table_name=table.name,
        effect=DdlEffect({}, {table.id: table}),
    )
