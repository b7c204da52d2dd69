"""Read the shapes of tables from a server's information_schema."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sluice.expectations.dataset import ColumnShape, Reference, TableShape
from sluice.tidb.table_name import TableName, full_name

__all__ = ["plain_type", "shape_of", "table_names"]

Query = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]
"""Runs a statement whose ``%s`` are filled with the values."""

_SYSTEM_SCHEMAS = ("mysql", "information_schema", "performance_schema", "sys", "metrics_schema")
_WIDTH = re.compile(r"\b(tinyint|smallint|mediumint|int|bigint|year)\(\d+\)")
_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
    " WHERE TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_SCHEMA, TABLE_NAME"
)
_COLUMNS = (
    "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA FROM"
    " information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY"
    " ORDINAL_POSITION"
)
_KEYS = (
    "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS WHERE TABLE_SCHEMA"
    " = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"
)
_REFERENCES = (
    "SELECT CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME,"
    " REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE TABLE_SCHEMA = %s AND"
    " TABLE_NAME = %s AND REFERENCED_TABLE_NAME IS NOT NULL ORDER BY CONSTRAINT_NAME,"
    " ORDINAL_POSITION"
)


def table_names(query: Query, own_schemas: tuple[str, ...]) -> list[str]:
    """Return the tables (``schema.table``) but the server's own and those in `own_schemas`."""
    others = {*_SYSTEM_SCHEMAS, *map(str.lower, own_schemas)}
    found = query(_TABLES, ())
    return [
        full_name(schema, table) for schema, table in found if str(schema).lower() not in others
    ]


def shape_of(query: Query, name: str) -> TableShape | None:
    """Return a table's shape, None if the table is missing."""
    schema, table = TableName.parse(name)
    columns = tuple(
        ColumnShape(
            str(column),
            plain_type(str(kind)),
            nullable == "YES",
            str(default or ""),
            str(extra or ""),
        )
        for column, kind, nullable, default, extra in query(_COLUMNS, (schema, table))
    )
    if not columns:
        return None
    return TableShape(name, columns, _keys(query, schema, table), _references(query, schema, table))


def plain_type(text: str) -> str:
    """Return a type without its display width, which only some servers print."""
    return _WIDTH.sub(r"\1", text.lower())


def _keys(query: Query, schema: str, table: str) -> tuple[tuple[str, ...], ...]:
    found: dict[str, list[str]] = {}
    partial: set[str] = set()
    for index, column, prefix in query(_KEYS, (schema, table)):
        found.setdefault(str(index), []).append(str(column))
        if prefix is not None or column is None:  # of a part of the text, or of an expression
            partial.add(str(index))
    names = sorted(found.keys() - partial, key=lambda index: (index.upper() != "PRIMARY", index))
    return tuple(tuple(found[index]) for index in names)


def _references(query: Query, schema: str, table: str) -> tuple[Reference, ...]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for name, column, parent_schema, parent, parent_column in query(_REFERENCES, (schema, table)):
        found.setdefault(str(name), []).append(
            (str(column), full_name(parent_schema, parent), str(parent_column))
        )
    return tuple(
        Reference(tuple(c for c, _, _ in parts), parts[0][1], tuple(p for _, _, p in parts))
        for parts in found.values()
    )
