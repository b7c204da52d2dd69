"""A SQL port over tables that a test makes up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from embedded.cluster.sql import ClusterState, SQLServer
from embedded.cluster.sql.versions import Catalog
from etl.copy.tidb_sql import TidbAddress
from upstream.schema import Schema, Table

NOW = 470_000_000_000_000_000


class GivenRows:
    """In the place of `embedded.cluster.sql.Versions`: tables of one schema with these rows (by table id, in the order
    of the key, the row id last where there is none), at every time.
    """

    def __init__(self, tables: Sequence[Table], rows: Mapping[int, Sequence[list[Any]]]) -> None:
        self._tables, self._rows = tables, rows

    def catalog(self, ts: int) -> Catalog:
        schemas = {table.schema_id: Schema(table.schema_id, table.schema_name) for table in self._tables}
        return Catalog(schemas, {table.id: table for table in self._tables}, {table.id: {} for table in self._tables})

    def rows(self, table: Table, ts: int) -> Iterator[list[Any]]:
        return (list(row) for row in self._rows[table.id])

    def new_collations(self) -> bool:
        return True


@contextlib.contextmanager
def serving_all(
    tables: Sequence[Table], rows: Mapping[int, Sequence[list[Any]]], region_rows: int
) -> Iterator[TidbAddress]:
    """The address of a TiDB that holds these tables."""
    versions: Any = GivenRows(tables, rows)
    server = SQLServer(ClusterState(versions, take_ts=lambda: NOW, region_rows=region_rows), "127.0.0.1", 0)
    server.start()
    try:
        yield TidbAddress("127.0.0.1", server.port)
    finally:
        server.stop()


@contextlib.contextmanager
def serving(table: Table, rows: Sequence[list[Any]], region_rows: int) -> Iterator[TidbAddress]:
    """The address of a TiDB that holds one table."""
    with serving_all([table], {table.id: rows}, region_rows) as address:
        yield address
