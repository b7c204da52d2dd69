"""Shorten indexes and comments to a server's limits: they hold no rows, so may not stop any."""

from __future__ import annotations

from dataclasses import replace

from sluice.etl.changes.dialect import Dialect
from sluice.etl.changes.formats.ddl_text import charset_name
from sluice.tidb import column_types
from sluice.tidb.ddl_actions import RENAMES
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Index, Table

MAX_KEY_BYTES = 3072
"""The longest key of InnoDB with pages of 16 KiB and the row formats DYNAMIC and COMPRESSED."""
MAX_INDEXES = 64
MAX_COLUMN_COMMENT_CHARS, MAX_INDEX_COMMENT_CHARS, MAX_TABLE_COMMENT_CHARS = 1024, 1024, 2048
_BYTES_PER_CHAR = {"binary": 1, "utf8": 3, "utf8mb3": 3, "gbk": 2}
_RESERVED_INDEX_NAME = "GEN_CLUST_INDEX"
"""The name of InnoDB's own index of rows without a key."""
_FIXED_BYTES = {
    column_types.TINYINT: 1,
    column_types.SMALLINT: 2,
    column_types.MEDIUMINT: 3,
    column_types.INT: 4,
    column_types.BIGINT: 8,
    column_types.FLOAT: 4,
    column_types.DOUBLE: 8,
    column_types.YEAR: 1,
    column_types.DATE: 3,
    column_types.NEWDATE: 3,
    column_types.ENUM: 2,
    column_types.SET: 8,
    column_types.TIME: 6,
    column_types.DATETIME: 8,
    column_types.TIMESTAMP: 7,
    column_types.BIT: 8,
}


def fit_comment(text: str, longest: int) -> str:
    """Return a comment that servers take: `longest` characters, none beyond U+FFFF."""
    return "".join(char if ord(char) < 0x10000 else "?" for char in text[:longest])


def comment_warning(what: str, text: str, longest: int) -> list[str]:
    """Return what `fit_comment` changes, as a warning or none."""
    return (
        []
        if fit_comment(text, longest) == text
        else [f"comment of {what} shortened, or with ? for some characters"]
    )


def is_unnameable(name: str) -> bool:
    """Return whether no MariaDB or MySQL holds the name.

    MariaDB refuses it, MySQL writes ? for some of it.
    """
    return any(ord(char) > 0xFFFF for char in name)


def unnameable_names(ddl: DdlJob) -> list[str]:
    """Return names of databases, base tables and changed columns in a DDL that no server holds."""
    tables = [
        table for table in ddl.effect.tables.values() if table is not None and table.is_base_table
    ]
    renamed = (
        [table for table in ddl.before.values() if table is not None] if ddl.type in RENAMES else []
    )
    names = [
        ddl.schema_name,
        *(schema.name for schema in ddl.effect.schemas.values() if schema is not None),
    ]
    names += [name for table in (*tables, *renamed) for name in (table.schema_name, table.name)]
    for table in tables:
        before = ddl.before.get(table.id)
        known = {column.name for column in before.columns} if before is not None else set()
        names += [
            column.name for column in table.columns if column.public and column.name not in known
        ]
    return [name for name in dict.fromkeys(names) if is_unnameable(name)]


def unfit_name(index: Index) -> bool:
    """Return whether servers refuse the name of a secondary index."""
    return not index.primary and (
        index.name.upper() == _RESERVED_INDEX_NAME or is_unnameable(index.name)
    )


def fit_index(table: Table, index: Index, dialect: Dialect) -> Index | None:
    """Return the index with prefixes that fit into a key, itself if it fits.

    A unique one must not be shortened: where the server can't hash it, None stands for one that
    isn't the primary key.
    """
    columns = {column.name: column for column in table.columns}
    if any(name not in columns for name, _, _ in index.columns):  # one that the downstream lacks
        return index
    if sum(_key_bytes(columns[name], length) for name, _, length in index.columns) <= MAX_KEY_BYTES:
        return index
    if index.unique or index.primary:
        return index if index.primary or dialect.hashes_long_keys else None
    return replace(index, columns=shortened_columns(table, index))


def shortened_columns(table: Table, index: Index) -> tuple[tuple[str, int, int], ...]:
    """Return the columns of an index that is too long, equal shares of a key for the longest."""
    columns = {column.name: column for column in table.columns}
    sizes = [_key_bytes(columns[name], length) for name, _, length in index.columns]
    left, share = MAX_KEY_BYTES, 0
    for n, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - n)
        if size > share:
            break
        left -= size
    return tuple(
        (name, offset, length if size <= share else max(share // _bytes_per_char(columns[name]), 1))
        for (name, offset, length), size in zip(index.columns, sizes, strict=True)
    )


def _key_bytes(column: Column, length: int) -> int:
    if column.kind in ("text", "binary"):
        return (length if length > 0 else max(column.flen, 1)) * _bytes_per_char(column)
    if column.kind == "decimal":
        return (max(column.flen, 10) + 8) // 9 * 4 + 4
    return _FIXED_BYTES.get(column.tp, 8)


def _bytes_per_char(column: Column) -> int:
    return _BYTES_PER_CHAR.get(charset_name(column.charset).lower(), 4)
