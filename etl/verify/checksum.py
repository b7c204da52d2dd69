"""Compute a table's checksum on its server: equal on TiDB, MySQL and MariaDB for the same rows.

A row becomes one string that no other row has: every value under one spelling, text in utf-8 and
after it its length in bytes, NULL as `N`. Of that the first 64 bits of SHA-256, and of these the
sum over all rows: so sums of ranges add up, and a row counts as often as it is there.

Sums, not BIT_XOR; and no CRC32: that is linear, so one change in two rows at the same place would
cancel itself out, and so would a row that is there twice.

If two sums differ, the caller reads the rows. So servers that print a value in two ways cost time,
and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.tidb.column_types import FLAG_ZEROFILL
from sluice.tidb.schema import Column

__all__ = ["SUMMED_KINDS", "Checksum", "ServerColumn", "checksum_columns"]

SUMMED_KINDS = frozenset(
    {
        "int",
        "year",
        "bit",
        "float",
        "double",
        "decimal",
        "text",
        "binary",
        "date",
        "datetime",
        "timestamp",
        "time",
        "enum",
        "set",
        "json",
    }
)
"""Kinds of columns whose values a server can spell."""
_MAX_SHORT_CHARS = 255
"""Text that may be longer goes into the row as its digest: a row must fit into the server's
max_allowed_packet.
"""
_UTF8 = ("utf8mb4", "utf8", "utf8mb3", "ascii")


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum; `digest`: the sum of the rows' digests."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.rows + other.rows, self.digest + other.digest)


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """A column as one server has it.

    `charset`: its character set there, "" for bytes and all that isn't text. `documents`: JSON has
    a type of its own there. `column.computed`: SQL that is computed in its place, where it isn't
    there.
    """

    column: Column
    charset: str = ""
    nullable: bool = True
    documents: bool = False

    @property
    def sql(self) -> str:
        """Return the column, or the expression that the server computes in its place."""
        return self.column.computed or quote_name(self.column.name)


def checksum_columns(columns: Sequence[ServerColumn]) -> str:
    """Return the select list for `Checksum`: the row count, and the sum of the rows' digests.

    The sum is NULL without rows. There is at least one column, each of SUMMED_KINDS.
    """
    values: list[str] = []
    lengths: list[str] = []
    for one in columns:
        value = _spelling(one)
        if one.column.kind not in ("text", "binary", "json"):
            values.append(_or_null(one, value))
        elif _is_long(one):
            # Beyond max_allowed_packet a server's functions return NULL, which is neither that nor
            # the value.
            values.append(f"IFNULL(SHA2({value},256),'?')")
            lengths.append(f"{one.sql} IS NULL")
        else:
            values.append(f"IFNULL({value},'')" if one.nullable else value)
            lengths.append(_or_null(one, f"LENGTH({value})"))
    row = f"CONCAT_WS(',',{','.join([*values, *lengths])})"
    return f"COUNT(*), SUM(CAST(CONV(LEFT(SHA2({row},256),16),16,10) AS UNSIGNED))"


def _or_null(one: ServerColumn, value: str) -> str:
    return f"IFNULL({value},'N')" if one.nullable else value


def _is_long(one: ServerColumn) -> bool:
    return one.column.kind == "json" or not 0 <= one.column.flen <= _MAX_SHORT_CHARS


def _spelling(one: ServerColumn) -> str:
    """Return SQL for the value as text without a comma, or as bytes."""
    name, kind = one.sql, one.column.kind
    if kind in ("year", "bit") or (kind in ("int", "decimal") and one.column.flag & FLAG_ZEROFILL):
        return f"{name}+0"
    if kind in ("float", "double"):
        # As a DOUBLE it has the fewest digits that identify it, and its zero keeps its sign.
        # From 1e15 on, and below 1e-15, servers print the exponent in two ways: rows are read where
        # there are such.
        return f"{name}*1e0"
    if kind == "json" and one.documents:
        return f"CAST({name} AS CHAR)"
    if kind in ("enum", "set"):
        return f"HEX({_bytes(name, one.charset)})"
    if kind in ("text", "binary", "json"):
        return _bytes(name, one.charset)
    return name


def _bytes(name: str, charset: str) -> str:
    if not charset or charset == "binary":
        return name
    return f"CAST({name if charset in _UTF8 else f'CONVERT({name} USING utf8mb4)'} AS BINARY)"
