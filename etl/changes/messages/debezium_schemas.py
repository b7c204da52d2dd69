"""Give tables the schemas that Debezium's connector for MySQL has in Kafka Connect.

As TiCDC, the schema of `source` lists Debezium's own fields alone, and bytes are strings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sluice.etl.changes.messages.debezium_ddl import changes_schema
from sluice.etl.changes.messages.debezium_types import MILLI_FSP, is_large
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column, Table

NAME = "default"
"""The connector's name in `source` and in the schemas, as TiCDC has it."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
_SOURCE = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("table", "string", True),
    ("server_id", "int64", False),
    ("gtid", "string", True),
    ("file", "string", False),
    ("pos", "int64", False),
    ("row", "int32", False),
    ("thread", "int64", True),
    ("query", "string", True),
)
"""Fields of `source` with their types, and whether they are optional."""
_SOURCE_BEYOND = (
    ("commit_ts", "int64", False),
    ("start_ts", "int64", False),
    ("cluster_id", "string", False),
)
"""Fields that TiCDC has in its values, but not in its schema."""
_DDL_FIELDS = (
    ("ts_ms", "int64", False),
    ("databaseName", "string", True),
    ("schemaName", "string", True),
    ("ddl", "string", True),
)
_TRANSACTION = (
    ("id", "string", False),
    ("total_order", "int64", False),
    ("data_collection_order", "int64", False),
)
_INT16 = (types.TINYINT, types.SMALLINT)
_PLAIN = {"year": "int32", "date": "int32", "datetime": "int64", "time": "int64"}
_NAMES = {
    "enum": "io.debezium.data.Enum",
    "set": "io.debezium.data.EnumSet",
    "json": "io.debezium.data.Json",
    "date": "io.debezium.time.Date",
    "time": "io.debezium.time.MicroTime",
    "timestamp": "io.debezium.time.ZonedTimestamp",
    "year": "io.debezium.time.Year",
}


def envelope_schema(table: Table, columns: Sequence[Column], *, lossless: bool) -> dict[str, Any]:
    """Return the schema of an envelope."""
    row = row_schema(columns, schema_name(table, "Value"), optional=True, lossless=lossless)
    transaction = struct("event.block", _fields(_TRANSACTION), optional=True)
    return struct(
        schema_name(table, "Envelope"),
        [
            row | {"field": "before"},
            row | {"field": "after"},
            _source_schema(lossless=lossless),
            *_fields((("op", "string", False), ("ts_ms", "int64", True))),
            transaction | {"version": 1, "field": "transaction"},
        ],
    ) | {"version": 1}


def ddl_schema(*, lossless: bool) -> dict[str, Any]:
    """Return the schema of a DDL message's value."""
    return struct(
        "io.debezium.connector.mysql.SchemaChangeValue",
        [_source_schema(lossless=lossless), *_fields(_DDL_FIELDS), changes_schema()],
    )


def _source_schema(*, lossless: bool) -> dict[str, Any]:
    listed = _SOURCE + _SOURCE_BEYOND if lossless else _SOURCE
    found = struct("io.debezium.connector.mysql.Source", _fields(listed))
    return found | {"field": "source"}


def schema_name(table: Table, part: str) -> str:
    """Return the full name of a table's schema: its Key, Value or Envelope."""
    names = (_NO_NAME.sub("_", name) for name in (NAME, table.schema_name, table.name))
    return ".".join([*names, part])


def struct(name: str, fields: list[dict[str, Any]], *, optional: bool = False) -> dict[str, Any]:
    """Return the schema of a struct."""
    return {"type": "struct", "optional": optional, "name": name, "fields": fields}


def _fields(listed: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in listed]


DDL_KEY_SCHEMA = struct(
    "io.debezium.connector.mysql.SchemaChangeKey", _fields((("databaseName", "string", False),))
)


def field_schema(column: Column, *, lossless: bool) -> dict[str, Any]:
    """Return a column's schema as Kafka Connect writes it."""
    schema: dict[str, Any] = {"type": _type_name(column, lossless=lossless)}
    schema["optional"] = not column.not_null
    name, parameters = _NAMES.get(column.kind, ""), {}
    if column.kind == "datetime":
        unit = "Timestamp" if column.fsp <= MILLI_FSP else "MicroTimestamp"
        name = f"io.debezium.time.{unit}"
    elif column.kind == "bit" and column.flen > 1:
        name, parameters = "io.debezium.data.Bits", {"length": str(column.flen)}
    elif column.kind in ("enum", "set"):
        allowed = (element.replace(",", "\\,") for element in column.elems)
        parameters = {"allowed": ",".join(allowed)}
    if name:
        schema |= {"name": name, "version": 1}
    if parameters:
        schema["parameters"] = parameters
    schema["field"] = column.name
    return schema


def row_schema(
    columns: Sequence[Column], name: str, *, optional: bool, lossless: bool
) -> dict[str, Any]:
    """Return the schema of a row of these columns."""
    return {
        "type": "struct",
        "optional": optional,
        "name": name,
        "fields": [field_schema(column, lossless=lossless) for column in columns],
    }


def _type_name(column: Column, *, lossless: bool) -> str:
    match column.kind:
        case "int" if is_large(column):
            return "string" if lossless else "int64"
        case "int":
            small = column.tp in _INT16 and not (column.unsigned and column.tp == types.SMALLINT)
            large = column.tp == types.BIGINT or (column.unsigned and column.tp == types.INT)
            return "int16" if small else "int64" if large else "int32"
        case "float":
            return "double" if column.decimal >= 0 and not lossless else "float"
        case "double":
            return "double"
        case "decimal":
            return "string" if lossless else "double"
        case "bit":
            return "bytes" if column.flen > 1 else "boolean"
        case "binary":
            return "bytes" if lossless else "string"
        case kind:
            return _PLAIN.get(kind, "string")
