"""A SQL port over tables that a test makes up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from embedded.cluster.sql import ClusterState, SQLServer
from embedded.cluster.sql.versions import Catalog
from etl.copy.tidb_sql import TidbAddress
from upstream.schema import Schema, Table

NOW = 470_000_000_000_000_000


class GivenRows:
    """In the place of `embedded.cluster.sql.Versions`: one table with these rows, at every time."""

    def __init__(self, table: Table, rows: Sequence[list[Any]]) -> None:
        self._table, self._rows = table, rows

    def catalog(self, ts: int) -> Catalog:
        schema = Schema(self._table.schema_id, self._table.schema_name)
        return Catalog({schema.id: schema}, {self._table.id: self._table}, {self._table.id: {}})

    def rows(self, table: Table, ts: int) -> Iterator[list[Any]]:
        return (list(row) for row in self._rows)

    def new_collations(self) -> bool:
        return True


@contextlib.contextmanager
def serving(table: Table, rows: Sequence[list[Any]], region_rows: int) -> Iterator[TidbAddress]:
    """The address of a TiDB that holds one table."""
    versions: Any = GivenRows(table, rows)
    server = SQLServer(ClusterState(versions, take_ts=lambda: NOW, region_rows=region_rows), "127.0.0.1", 0)
    server.start()
    try:
        yield TidbAddress("127.0.0.1", server.port)
    finally:
        server.stop()
