"""A SQL port over tables that a test makes up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.devstack.tidb.sql import ClusterState, SQLServer
from sluice.devstack.tidb.sql.key_limits import key_order
from sluice.devstack.tidb.sql.values import sorter
from sluice.devstack.tidb.sql.versioned_rows import Catalog
from sluice.etl.copy.tidb_sql import TidbAddress
from sluice.tidb.schema import Schema, Table

NOW = 470_000_000_000_000_000


class GivenRows:
    """In the place of `sluice.devstack.tidb.sql.Versions`: tables of one schema with these rows (by
    table id, the row id last where there is no key), at every time.
    """

    def __init__(self, tables: Sequence[Table], rows: Mapping[int, Sequence[list[Any]]]) -> None:
        self._tables, self._rows = tables, rows

    def catalog(self, ts: int) -> Catalog:
        schemas = {
            table.schema_id: Schema(table.schema_id, table.schema_name) for table in self._tables
        }
        return Catalog(
            schemas,
            {table.id: table for table in self._tables},
            {table.id: {} for table in self._tables},
        )

    def rows(self, table: Table, ts: int, low: Any = None, high: Any = None) -> Iterator[list[Any]]:
        columns = {
            column.name.lower(): (n, sorter(column))
            for n, column in enumerate(table.stored_columns)
        }
        key = [columns.get(name, (-1, int)) for name in key_order(table)]
        rows = [(tuple(order(row[n]) for n, order in key), row) for row in self._rows[table.id]]
        for place, row in sorted(rows, key=lambda pair: pair[0]):
            if not key or ((low is None or place[0] >= low) and (high is None or place[0] <= high)):
                yield list(row)

    def new_collations(self) -> bool:
        return True


@contextlib.contextmanager
def serving_all(
    tables: Sequence[Table], rows: Mapping[int, Sequence[list[Any]]], region_rows: int
) -> Iterator[TidbAddress]:
    """The address of a TiDB that holds these tables."""
    versions: Any = GivenRows(tables, rows)
    server = SQLServer(
        ClusterState(versions, take_ts=lambda: NOW, region_rows=region_rows), "127.0.0.1", 0
    )
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
