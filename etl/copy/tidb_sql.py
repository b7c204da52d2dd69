"""A live TiDB as a source of rows, read with SQL as of one timestamp.

A chunk is a range of the table's key: from one region's first row to the next's, and between those
of about even width. Nothing is counted; sizes are those of TiDB's statistics, or of so many
regions. Every chunk is read over a connection of its own, and its rows are not kept in memory on
either side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import pyarrow as pa

from sluice.etl.changes.formats.key_ranges import KeyColumn, in_range, key_columns, refined_bounds
from sluice.etl.changes.formats.sql_text import literal, quote_table
from sluice.etl.changes.rules import without_source_column
from sluice.etl.copy._key_cuts import Key, key_equals, split_between
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.shared_keys import SharedKey, shared_keys
from sluice.etl.copy.source import SourceChunk, TableEstimate
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession, read_rows
from sluice.tidb.history import SYSTEM_SCHEMAS
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

__all__ = ["TidbAddress", "TidbSql"]

_PARTS_PER_REGION = 3
"""A region has 96 MiB, a chunk should have some 32."""
_SMALL_REGION_COUNT = 32
"""Number of regions above which they are chunks enough."""
_REGION_BYTES, _SMALL_BYTES = 64 << 20, 1 << 20
"""Assumed sizes of a region, and of a table with few rows, while TiDB has no statistics."""


class TidbSql:
    """The TiDB at an address as of a timestamp; see `sluice.etl.copy.source.RowSource`."""

    few_rows = 20_000
    """A table of one region with no more rows is one chunk."""

    def __init__(self, address: TidbAddress, position: int) -> None:
        self._address = address
        self.position = position
        self._sizes: dict[str, int] = {}

    @classmethod
    def now(cls, address: TidbAddress) -> Self:
        """Return a source as of now. Raises CopyError."""
        with TidbSession(address) as session:
            ((_, position, *_),) = session.query("SHOW MASTER STATUS")
        return cls(address, int(position or 0))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the source in another process."""
        return cls(TidbAddress.from_json(spec["address"]), spec["position"])

    def spec(self) -> dict[str, Any]:
        return {"kind": "tidb-sql", "address": self._address.to_json(), "position": self.position}

    def describe(self) -> str:
        return f"TiDB at {self._address.shown}"

    def tables(self) -> list[TableEstimate]:
        with self._session() as session:
            rows = session.query(
                "SELECT TABLE_SCHEMA, TABLE_NAME, DATA_LENGTH FROM information_schema.TABLES"
                " WHERE TABLE_TYPE = 'BASE TABLE'"
            )
        found = [(_text(schema), _text(name), int(size or 0)) for schema, name, size in rows]
        self._sizes = {full_name(schema, name): size for schema, name, size in found}
        return [
            TableEstimate(schema, name, size)
            for schema, name, size in sorted(found)
            if schema.lower() not in SYSTEM_SCHEMAS
        ]

    def check_schema(self, table: Table) -> None:
        with self._session() as session:
            columns = session.query(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA ="
                f" {literal(table.schema_name)} AND TABLE_NAME = {literal(table.name)}"
            )
        found = sorted(_text(name) for (name,) in columns)
        wanted = sorted(
            column.name for column in table.columns if column.public and not column.hidden
        )
        if found != wanted:
            raise CopyError(
                f"{table.full_name} at {self.position} has the columns {', '.join(found) or 'none'}"
                f" for {self.describe()} and {', '.join(wanted)} for PD and TiKV: are both of one"
                " cluster?"
            )

    def shared_keys(self, tables: Sequence[Table]) -> list[SharedKey]:
        """Return keys that several of these tables have. Raises CopyError."""
        with self._session() as session:
            return list(shared_keys(session.query, tables))

    def chunks(self, table: Table) -> list[SourceChunk]:
        key = key_columns(table)
        with self._session() as session:
            sampled = self._sampled(session, table, key) if key else []
            is_small = len(sampled) < 2 and not (key and self._has_more(session, table, key))
            bounds = [] if is_small or not key else self._bounds(session, table, key, sampled)
        edges: list[list[str] | None] = [None, *bounds, None]
        size = self._sizes.get(table.full_name) or (
            _SMALL_BYTES if is_small else len(sampled) * _REGION_BYTES
        )
        return [
            SourceChunk(
                table.schema_name,
                table.name,
                number,
                {"key_low": low, "key_high": high},
                size // (len(bounds) + 1),
            )
            for number, (low, high) in enumerate(pairwise(edges))
        ]

    def _sampled(self, session: TidbSession, table: Table, key: Sequence[KeyColumn]) -> list[Key]:
        """Return the keys of the first rows of regions, ascending."""
        names = _names(key)
        return list(
            session.query(
                f"SELECT {names} FROM {quote_table(table)} TABLESAMPLE REGIONS() ORDER BY {names}"
            )
        )

    def _has_more(self, session: TidbSession, table: Table, key: Sequence[KeyColumn]) -> bool:
        """Return whether the table has more than a few rows; reads few of them."""
        names = _names(key)
        return bool(
            session.query(
                f"SELECT {names} FROM {quote_table(table)} ORDER BY {names} LIMIT 1 OFFSET"
                f" {self.few_rows}"
            )
        )

    def _bounds(
        self, session: TidbSession, table: Table, key: Sequence[KeyColumn], sampled: Sequence[Key]
    ) -> list[list[str]]:
        """Return where to cut, ascending, as literals: regions' first rows, and places between."""
        if len(key) == 1 and key[0].kind == "int":
            name = _names(key)
            ((low, high),) = session.query(
                f"SELECT MIN({name}), MAX({name}) FROM {quote_table(table)}"
            )
            if low is None or high is None:
                return []
            starts = [int(value or 0) for (value,) in sampled]
            return [
                [str(bound)]
                for bound in refined_bounds(starts, int(low), int(high), _PARTS_PER_REGION)
            ]
        found: list[list[str]] = []
        for row in self._with_inner(session, table, key, sampled)[1:]:
            try:
                bound = [
                    column.literal(value or b"") for column, value in zip(key, row, strict=True)
                ]
            except UnicodeDecodeError:  # no literal can express it: the chunk before goes on
                continue
            if not found or found[-1] != bound:
                found.append(bound)
        return found

    def _with_inner(
        self, session: TidbSession, table: Table, key: Sequence[KeyColumn], sampled: Sequence[Key]
    ) -> Sequence[Key]:
        """Return `sampled`, and keys of rows between where there are few regions, ascending.

        Keys of rows that are there, in the order that TiDB gives them: a made-up one may stand
        elsewhere in a collation's order.
        """
        index = without_source_column(table).primary_index
        if (
            not sampled
            or len(sampled) > _SMALL_REGION_COUNT
            or index is None
            or len(index.columns) != len(key)
        ):
            return sampled
        names, start = _names(key), f"SELECT {_names(key)} FROM {quote_table(table)}"
        last = session.query(f"{start} ORDER BY {_names(key, ' DESC')} LIMIT 1")
        places = [
            p
            for a, b in pairwise([*sampled, *last])
            for p in split_between(key, a, b, _PARTS_PER_REGION)
        ]
        inner = [
            tuple(row)
            for place in places
            for row in session.query(
                f"{start} WHERE {in_range(key, place, None)} ORDER BY {names} LIMIT 1"
            )
        ]
        try:
            conditions = [
                key_equals(key, row) for row in dict.fromkeys([*map(tuple, sampled), *inner])
            ]
        except UnicodeDecodeError:
            return sampled
        return list(session.query(f"{start} WHERE {' OR '.join(conditions)} ORDER BY {names}"))

    def brings(self, table: Table) -> frozenset[str]:
        return frozenset(column.name for column in table.stored_columns if column.generated)

    def read(self, chunk: SourceChunk, table: Table) -> Iterator[pa.RecordBatch]:
        where = in_range(key_columns(table), chunk.place["key_low"], chunk.place["key_high"])
        with self._session() as session:
            yield from read_rows(session, replace(table, columns=table.stored_columns), where)

    def _session(self) -> TidbSession:
        session = TidbSession(self._address)
        try:
            session.read_at(self.position)
        except CopyError:
            session.close()
            raise
        return session


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _names(key: Sequence[KeyColumn], order: str = "") -> str:
    return ", ".join(f"{column.quoted}{order}" for column in key)
