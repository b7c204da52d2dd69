"""A live TiDB as a source of rows, read with SQL as of one timestamp.

A chunk is a range of the table's key: from one region's first row to the next's, and between those, where the key is a
number, of even width. Nothing is counted. Every chunk is read over a connection of its own, and its rows are not kept
in memory on either side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import pyarrow as pa

from etl.copy.errors import CopyError
from etl.copy.source import Chunk, TableEstimate
from etl.copy.tidb_rows import read_rows
from etl.copy.tidb_session import TidbAddress, TidbSession
from etl.formats.key_ranges import KeyColumn, finer, in_range, key_columns
from etl.formats.sql_text import literal, quote_table
from upstream.history import SYSTEM_SCHEMAS
from upstream.schema import Table

__all__ = ["TidbAddress", "TidbSql"]

_PARTS_A_REGION = 3
"""A region has 96 MiB, a chunk should have some 32."""


class TidbSql:
    """The TiDB at an address as of a timestamp; see `etl.copy.source.Source`."""

    def __init__(self, address: TidbAddress, position: int) -> None:
        self._address = address
        self.position = position

    @classmethod
    def now(cls, address: TidbAddress) -> Self:
        """As of now. Raises CopyError."""
        with TidbSession(address) as session:
            ((_, position, *_),) = session.query("SHOW MASTER STATUS")
        return cls(address, int(position or 0))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """In another process."""
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
        return [
            TableEstimate(schema, name, size)
            for schema, name, size in sorted(found)
            if schema.lower() not in SYSTEM_SCHEMAS
        ]

    def check_schema(self, table: Table) -> None:
        with self._session() as session:
            columns = session.query(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS"
                f" WHERE TABLE_SCHEMA = {literal(table.schema_name)} AND TABLE_NAME = {literal(table.name)}"
            )
        found = sorted(_text(name) for (name,) in columns)
        wanted = sorted(column.name for column in table.columns if column.public and not column.hidden)
        if found != wanted:
            raise CopyError(
                f"{table.full_name} at {self.position} has the columns {', '.join(found) or 'none'} for"
                f" {self.describe()} and {', '.join(wanted)} for PD and TiKV: are both of one cluster?"
            )

    def chunks(self, table: Table) -> list[Chunk]:
        key = key_columns(table)
        with self._session() as session:
            bounds = self._bounds(session, table, key) if key else []
        edges: list[list[str] | None] = [None, *bounds, None]
        return [
            Chunk(table.schema_name, table.name, number, {"key_low": low, "key_high": high}, 0)
            for number, (low, high) in enumerate(pairwise(edges))
        ]

    def _bounds(self, session: TidbSession, table: Table, key: Sequence[KeyColumn]) -> list[list[str]]:
        """Where to cut, ascending, as literals: the first rows of regions, and points between."""
        names = ", ".join(column.quoted for column in key)
        sampled = session.query(f"SELECT {names} FROM {quote_table(table)} TABLESAMPLE REGIONS() ORDER BY {names}")
        if len(key) == 1 and key[0].kind == "int":
            ((low, high),) = session.query(f"SELECT MIN({names}), MAX({names}) FROM {quote_table(table)}")
            if low is None or high is None:
                return []
            starts = [int(value or 0) for (value,) in sampled]
            return [[str(bound)] for bound in finer(starts, int(low), int(high), _PARTS_A_REGION)]
        found: list[list[str]] = []
        for row in sampled[1:]:
            try:
                bound = [column.literal(value or b"") for column, value in zip(key, row, strict=True)]
            except UnicodeDecodeError:  # no literal says it: the chunk before goes on
                continue
            if not found or found[-1] != bound:
                found.append(bound)
        return found

    def read(self, chunk: Chunk, table: Table) -> Iterator[pa.RecordBatch]:
        where = in_range(key_columns(table), chunk.place["key_low"], chunk.place["key_high"])
        with self._session() as session:
            yield from read_rows(session, replace(table, columns=table.writable_columns), where)

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
