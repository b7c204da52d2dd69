"""Describe a downstream table's columns for a chunk of rows.

This is which columns are written, how values are compared exactly, and the definition of a scratch
table that takes the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.errors import Signal
from sluice.etl.changes.formats.ddl_text import blank_ended_columns
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.formats.table_fallbacks import zone_dependent_columns
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl import repair_blank_ends
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table

_COLUMNS = (
    "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME,"
    " CHARACTER_MAXIMUM_LENGTH, COALESCE(GENERATION_EXPRESSION, '') <> '' FROM"
    " information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY"
    " ORDINAL_POSITION"
)
_LONG_TYPES = frozenset(
    {"tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob"}
)
_BYTE_TYPES = _LONG_TYPES | {"binary", "varbinary"}
_NUMBERED_TYPES = frozenset({"enum", "set", "bit"})
_MAX_INDEX_CHARS = 64
"""Characters of a long key that the scratch table's index holds."""
_MAX_INDEX_COLUMNS = 8


class ChunkDoesNotFit(Signal):
    """The downstream's table can't take the chunk; the text names the reason."""


@dataclass(frozen=True, slots=True)
class ChunkColumn:
    """A column downstream, by its names in information_schema."""

    name: str
    data_type: str
    column_type: str
    charset: str
    collation: str
    length: int
    is_computed: bool

    @property
    def quoted(self) -> str:
        return quote_name(self.name)

    @property
    def definition(self) -> str:
        """Return the definition for a table that takes the same values, NULL among them."""
        text = f" CHARACTER SET {self.charset} COLLATE {self.collation}" if self.charset else ""
        return f"{self.quoted} {self.column_type}{text} NULL"

    @property
    def indexed(self) -> str:
        """Return the column as part of an index that finds its values."""
        return (
            f"{self.quoted}({_MAX_INDEX_CHARS})"
            if self.data_type in _LONG_TYPES or self.length > _MAX_INDEX_CHARS
            else self.quoted
        )

    def exact(self, table: str) -> str:
        """Return an expression that is equal for equal values only, whatever the collation.

        `table`: quoted.
        """
        name = f"{table}.{self.quoted}"
        if self.data_type in _NUMBERED_TYPES:
            return f"({name}+0)"
        return f"CAST({name} AS BINARY)" if self.charset else name

    def hashed(self, table: str) -> str:
        """Return an expression whose text is the same for exactly equal values."""
        name = f"{table}.{self.quoted}"
        if self.data_type in ("float", "double"):
            return f"({name}+0e0)"  # of -0.0 it makes 0.0
        return f"CAST({name} AS CHAR)" if self.data_type == "json" else self.exact(table)

    def grouped(self, table: str) -> str:
        """Return an expression by which exactly equal values are grouped.

        The server cuts off long ones, so they are hashed.
        """
        if self.data_type == "json":
            return f"SHA2(CAST({table}.{self.quoted} AS CHAR), 256)"
        exact, is_number = self.exact(table), self.data_type in _NUMBERED_TYPES
        return (
            f"SHA2({exact}, 256)"
            if (self.charset and not is_number) or self.data_type in _BYTE_TYPES
            else exact
        )


def downstream_columns(session: MySQLSession, schema: str, table: str) -> list[ChunkColumn]:
    """Return the columns of a table downstream, in its order; [] if there is no such table."""
    return [
        ChunkColumn(
            str(name),
            str(kind).lower(),
            _text(full),
            _text(charset),
            _text(collation),
            int(length or 0),
            bool(computed),
        )
        for name, kind, full, charset, collation, length, computed in session.query(
            _COLUMNS, (schema, table)
        )
    ]


@dataclass(frozen=True, slots=True)
class ChunkColumns:
    """The columns of a chunk and of its table.

    `written`: the columns that the chunk brings. `key`: those of them that identify a row, () if
    only all do.
    """

    written: tuple[ChunkColumn, ...]
    key: tuple[ChunkColumn, ...]
    computed: frozenset[str]
    """Columns that the server computes by itself, in lower case."""

    @classmethod
    def load(cls, session: MySQLSession, table: Table, brought: Sequence[str]) -> ChunkColumns:
        """Return the table's columns for a chunk with the columns `brought`.

        `table`: the upstream's, under its name downstream. Raises ChunkDoesNotFit, which names
        what doesn't fit.
        """
        found = downstream_columns(session, table.schema_name, table.name)
        if not found:
            raise ChunkDoesNotFit(f"there is no table {table.full_name} on {session.address}")
        by_name = {folded(column.name): column for column in found}
        lacking = [name for name in brought if folded(name) not in by_name]
        if lacking:
            raise ChunkDoesNotFit(
                f"{table.full_name} on {session.address} lacks the columns {', '.join(lacking)} of"
                " the upstream's table"
            )
        computed = {folded(column.name) for column in found if column.is_computed}
        brought_lower = {folded(name) for name in brought}
        for column in table.stored_columns:
            if folded(column.name) not in brought_lower | computed:
                raise ChunkDoesNotFit(
                    f"{table.full_name}.{column.name} is computed upstream and a plain column on"
                    f" {session.address}: the chunk doesn't bring its values"
                )
        unsure = [name for name in zone_dependent_columns(table) if folded(name) in computed]
        if unsure:
            raise ChunkDoesNotFit(
                f"{session.address} computes {', '.join(unsure)} of {table.full_name} by itself,"
                " and may come to other values than the upstream: make them plain columns"
            )
        if repair := repair_blank_ends(
            session, table.schema_name, table.name, blank_ended_columns(table)
        ):
            raise ChunkDoesNotFit(
                f"{session.address} has cut off the blanks that elements of ENUM or SET columns of"
                f" {table.full_name} end with: {repair}"
            )
        written = tuple(by_name[folded(name)] for name in brought if folded(name) not in computed)
        names = [folded(column.name) for column in lookup_key_columns(table)]
        if set(names) - {folded(column.name) for column in written}:
            raise ChunkDoesNotFit(
                f"the key {', '.join(names)} of {table.full_name} is not among what the chunk"
                " brings"
            )
        key = tuple(by_name[name] for name in names)
        return cls(written, key, frozenset(computed))

    def left_out(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the columns that the server computes."""
        return tuple(name for name in names if folded(name) in self.computed)

    def check_order(self, session: MySQLSession, table: Table, names: Sequence[str]) -> None:
        """Raise ChunkDoesNotFit unless conditions on these columns select the upstream's rows."""
        found = {folded(column.name): column for column in self.key}
        upstream = {folded(column.name): column for column in table.columns}
        for name in names:
            column, here = upstream.get(folded(name)), found.get(folded(name))
            if column is None or here is None:
                raise ChunkDoesNotFit(f"{table.full_name}.{name} is no column of its key")
            if column.kind == "text" and not _same_collation(
                session, column.collate, here.collation
            ):
                raise ChunkDoesNotFit(
                    f"{table.full_name}.{name} has the collation {column.collate} upstream and"
                    f" {here.collation or 'none'} on {session.address}: a range of it would be"
                    " other rows there. Copy the whole table at once, or give the column the"
                    " upstream's collation"
                )

    def same(self, one: str, other: str) -> str:
        """Return the condition that two rows are exactly equal, found by the key if any."""
        exact = [f"{column.exact(one)} <=> {column.exact(other)}" for column in self.written]
        return " AND ".join([self.keys_equal(one, other), *exact] if self.key else exact)

    def keys_equal(self, one: str, other: str) -> str:
        """Return the condition that two rows have the key that the server holds to be the same."""
        return " AND ".join(
            f"{one}.{column.quoted} = {other}.{column.quoted}" for column in self.key
        )

    def names(self) -> str:
        """Return the written columns, separated by commas."""
        return ", ".join(column.quoted for column in self.written)

    def scratch(self, name: str, state: str) -> str:
        """Return the statement that creates a temporary table for such rows.

        It has a number `state` for each row.
        """
        parts = [column.definition for column in self.written] + [
            f"{state} TINYINT NOT NULL DEFAULT 0"
        ]
        if self.key:
            parts.append(
                f"KEY ({', '.join(column.indexed for column in self.key[:_MAX_INDEX_COLUMNS])})"
            )
        return f"CREATE TEMPORARY TABLE {name} ({', '.join(parts)}) ENGINE=InnoDB"


def _same_collation(session: MySQLSession, upstream: str, here: str) -> bool:
    names = {_without_suffix(upstream), _without_suffix(session.dialect.collation(upstream))}
    return _without_suffix(here) in names


def _without_suffix(collation: str) -> str:
    return collation.lower().replace("utf8mb3_", "utf8_")


def _text(value: object) -> str:
    return "" if value is None else str(value)
