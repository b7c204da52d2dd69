"""The DDL that makes the downstream's empty databases and tables: CREATE statements as if the upstream had sent them.

They go through the rules and the executor that replicated DDL goes through, so that a table is created in the same way
wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from etl.rules import Filter, Routes, scope_ddl
from upstream.column_types import FLAG_AUTO_INCREMENT
from upstream.ddl_actions import Action
from upstream.schema import Schema, Table


def create_schema(schema: Schema, ts: int) -> dict[str, Any]:
    """CREATE DATABASE."""
    return _document(
        Action.CREATE_SCHEMA, ts, (schema.name, ""), f"CREATE DATABASE {schema.name}",
        {"schemas": {str(schema.id): schema.to_json()}, "tables": {}},
    )  # fmt: skip


def create(table: Table, ts: int) -> dict[str, Any]:
    """CREATE TABLE, VIEW or SEQUENCE."""
    kind = Action.CREATE_VIEW if table.is_view else Action.CREATE_SEQUENCE if table.is_sequence else Action.CREATE_TABLE
    return _document(
        kind, ts, (table.schema_name, table.name), f"{kind.name.replace('_', ' ')} {table.full_name}",
        {"schemas": {}, "tables": {str(table.id): table.to_json()}},
    )  # fmt: skip


def add_rest(bare: Table, table: Table, ts: int) -> list[dict[str, Any]]:
    """What adds the secondary indexes, then the foreign keys, that `bare` lacks."""
    indexed = replace(table, foreign_keys=())
    steps = [(Action.ADD_INDEX, bare, indexed), (Action.ADD_FOREIGN_KEY, indexed, table)]
    return [
        _document(
            kind,
            ts,
            (table.schema_name, table.name),
            f"ALTER TABLE {table.full_name} ADD ...",
            {"schemas": {}, "tables": {str(after.id): after.to_json()}},
            {str(before.id): before.to_json()},
        )
        for kind, before, after in steps
        if before != after
    ]


def without_rest(table: Table, *, indexes: bool) -> Table:
    """Without foreign keys, and if `indexes` without the secondary indexes: what begins with an AUTO_INCREMENT column
    stays, servers want it indexed.
    """
    bare = replace(table, foreign_keys=())
    if not indexes:
        return bare
    counting = {column.name for column in table.columns if column.flag & FLAG_AUTO_INCREMENT}
    kept = tuple(index for index in table.indexes if index.primary or index.columns[0][0] in counting)
    return replace(bare, indexes=kept)


def scoped(ddl: Mapping[str, Any], filters: Filter, routes: Routes) -> dict[str, Any] | None:
    """The statement as the rules want it downstream, None if they don't. Raises ScopeError."""
    before = {int(i): Table.from_json(t) for i, t in (ddl.get("before") or {}).items()}
    return scope_ddl({key: value for key, value in ddl.items() if key != "before"}, before, filters, routes).ddl


def _document(
    kind: int,
    ts: int,
    name: tuple[str, str],
    query: str,
    effect: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "commit_ts": ts, "start_ts": ts, "job_id": 0, "query": query, "schema_state": 5, "schema_version": 0,
        "type": int(kind), "schema_name": name[0], "table_name": name[1], "effect": effect, "before": before or {},
        "time_zone": "", "sql_mode": None, "converted_from_ts": 0,
    }  # fmt: skip
