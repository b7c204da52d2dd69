"""Describe what a DDL statement makes of tables, as `tableChanges` of Debezium's DDL messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.etl.changes.messages.canal_json import mysql_type, sql_type
from sluice.tidb import column_types as types
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

_WITH_LENGTH = {"text", "binary", "decimal", "bit", "year"}
_SILENT = {Action.TRUNCATE_TABLE, Action.CREATE_SCHEMA, Action.DROP_SCHEMA}
"""Statements whose `tableChanges` are empty, as TiCDC has them."""

Fields = tuple[tuple[str, str, bool], ...]
COLUMN_FIELDS: Fields = (
    ("name", "string", False),
    ("jdbcType", "int32", False),
    ("nativeType", "int32", True),
    ("typeName", "string", False),
    ("typeExpression", "string", True),
    ("charsetName", "string", True),
    ("length", "int32", True),
    ("scale", "int32", True),
    ("position", "int32", False),
    ("optional", "boolean", True),
    ("autoIncremented", "boolean", True),
    ("generated", "boolean", True),
    ("comment", "string", True),
    ("defaultValueExpression", "string", True),
)
"""Fields of a column with their types, and whether they are optional; `enumValues` follow."""


def table_changes(job: DdlJob) -> list[dict[str, Any]]:
    """Return an entry for each table that the statement creates, alters or drops."""
    if job.type in _SILENT:
        return []
    pairs = list(job.table_pairs())
    kept = {table.id for pair in pairs for table in pair}
    found = [_entry("ALTER", new, old) for old, new in pairs]
    for table_id, table in job.effect.tables.items():
        if table is not None and table_id not in kept:
            found.append(_entry("CREATE", table))
        elif table is None and (old := job.before.get(table_id)) and table_id not in kept:
            found.append(_entry("DROP", old))
    return found


def truncated_table(job: DdlJob) -> Table:
    """Return the table that TRUNCATE TABLE empties, as messages name and describe it."""
    columns = next((t.columns for t in job.effect.tables.values() if t is not None), ())
    return Table(0, 0, job.schema_name, job.table_name, columns)


def changes_schema() -> dict[str, Any]:
    """Return the schema of `tableChanges`."""
    strings = {"type": "array", "items": {"type": "string", "optional": False}, "optional": True}
    column = _struct("Column", [*_listed(COLUMN_FIELDS), strings | {"field": "enumValues"}])
    columns = {"type": "array", "items": column, "optional": False, "field": "columns"}
    table = _struct(
        "Table",
        [
            *_listed((("defaultCharsetName", "string", True),)),
            strings | {"field": "primaryKeyColumnNames"},
            columns,
            *_listed((("comment", "string", True),)),
        ],
    )
    change = _struct(
        "Change",
        [
            *_listed((("type", "string", False), ("id", "string", False))),
            table | {"optional": True, "field": "table"},
        ],
    )
    return {"type": "array", "items": change, "optional": False, "field": "tableChanges"}


def _entry(kind: str, table: Table, old: Table | None = None) -> dict[str, Any]:
    names = [_id(table)]
    if old is not None and _id(old) != _id(table):
        names.insert(0, _id(old))
    shown = None if kind == "DROP" else dict(_table(table))
    return {"type": kind, "id": ",".join(names), "table": shown}


def _id(table: Table) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in (table.schema_name, table.name))


def _table(table: Table) -> Iterator[tuple[str, Any]]:
    yield "defaultCharsetName", table.charset or None
    yield "primaryKeyColumnNames", list(table.primary_key)
    shown = [column for column in table.columns if column.public and not column.hidden]
    yield "columns", [dict(_column(column, at + 1)) for at, column in enumerate(shown)]
    yield "comment", table.comment or None


def _column(column: Column, position: int) -> Mapping[str, Any]:
    name = mysql_type(column, full=False).upper()
    with_length = column.kind in _WITH_LENGTH and 0 <= column.flen < 2**31
    default = column.default if isinstance(column.default, str) else None
    return {
        "name": column.name,
        "jdbcType": sql_type(column),
        "nativeType": None,
        "typeName": name,
        "typeExpression": name,
        "charsetName": column.charset if column.charset not in ("", "binary") else None,
        "length": column.flen if with_length else None,
        "scale": column.decimal if column.kind == "decimal" else column.fsp or None,
        "position": position,
        "optional": not column.not_null,
        "autoIncremented": bool(column.flag & types.FLAG_AUTO_INCREMENT),
        "generated": bool(column.generated),
        "comment": column.comment or None,
        "defaultValueExpression": default,
        "enumValues": list(column.elems) or None,
    }


def _struct(name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    name = f"io.debezium.connector.schema.{name}"
    return {"type": "struct", "optional": False, "name": name, "version": 1, "fields": fields}


def _listed(fields: Fields) -> list[dict[str, Any]]:
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in fields]
