"""A snapshot of the archive as a source of rows; a chunk is a file of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.snapshot_files import read_file, rows_schema
from sluice.etl.copy.source import SourceChunk, TableEstimate
from sluice.relay.archive import ArchiveSnapshot, SnapshotFile, SnapshotStore, SnapshotTable
from sluice.relay.errors import RelayError
from sluice.relay.storage import open_storage
from sluice.tidb.schema import STATE_PUBLIC, Column, Schema, Table

if TYPE_CHECKING:
    from sluice.etl.copy.definitions import SourceSchema

__all__ = ["SnapshotSource"]


class SnapshotSource:
    """The snapshot `name` of the archive at a URL; see `sluice.etl.copy.source.RowSource`.

    Damaged files are RelayCorruptErrors.
    """

    def __init__(self, url: str, name: str, position: int) -> None:
        """Name a snapshot and its `position`; nothing is looked up."""
        self._url = url
        self._name = name
        self.position = position
        self._storage = open_storage(url)
        self._snapshot: ArchiveSnapshot | None = None
        self.left_empty: frozenset[int] = frozenset()
        """Ids of tables that have no chunks here, whatever rows the snapshot has of them."""

    @classmethod
    def from_snapshot(cls, url: str, snapshot: ArchiveSnapshot) -> Self:
        """Return a snapshot of the archive at `url`."""
        made = cls(url, snapshot.id, snapshot.ts)
        made._snapshot = snapshot
        return made

    @classmethod
    def open(cls, url: str, name: str) -> Self:
        """Return the named snapshot of the archive at `url`. Raises RelayError if there is none."""
        return cls.from_snapshot(url, SnapshotStore(open_storage(url)).get(name))

    @classmethod
    def latest(cls, url: str) -> Self:
        """Return the youngest snapshot of the archive at `url`.

        Raises CopyError if it has none, RelayError.
        """
        snapshot = SnapshotStore(open_storage(url)).latest(2**63 - 1)
        if snapshot is None:
            raise CopyError(f"{url} has no snapshot", hint="`sluice snapshot make` makes one")
        return cls.from_snapshot(url, snapshot)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the source in another process; nothing is looked up."""
        return cls(spec["url"], spec["snapshot"], spec["position"])

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "snapshot",
            "url": self._url,
            "snapshot": self._name,
            "position": self.position,
        }

    def describe(self) -> str:
        return f"the snapshot {self._name} of {self._url}"

    @property
    def snapshot(self) -> ArchiveSnapshot:
        """Return its manifest. Raises RelayError."""
        if self._snapshot is None:
            self._snapshot = SnapshotStore(self._storage).get(self._name)
        return self._snapshot

    def definitions(self) -> SourceSchema:
        """Return the upstream's schema at its position: databases, tables, views and sequences.

        Raises RelayError.
        """
        # workers load no client of the cluster
        from sluice.etl.copy.definitions import SourceSchema

        snapshot = self.snapshot
        return SourceSchema(
            snapshot.ts, snapshot.schema_version, tuple(map(Schema.from_json, snapshot.schemas)),
            tuple(Table.from_json(table.table) for table in snapshot.tables),
        )  # fmt: skip

    def tables(self) -> list[TableEstimate]:
        return [
            TableEstimate(table.schema, table.name, table.row_bytes, table.rows)
            for table in self.snapshot.tables
            if Table.from_json(table.table).is_base_table
        ]

    def check_schema(self, table: Table) -> None:
        found = Table.from_json(self._table(table).table)
        if not rows_schema(found).equals(rows_schema(table)):
            raise CopyError(
                f"{self.describe()} has {table.full_name} with the columns {_columns(found)}, the"
                f" upstream had {_columns(table)} at {self.position}: is it of another cluster?"
            )

    def chunks(self, table: Table) -> list[SourceChunk]:
        files = self._table(table).files if table.id not in self.left_empty else ()
        return [
            SourceChunk(table.schema_name, table.name, number, file.to_json(), file.row_bytes)
            for number, file in enumerate(files)
        ]

    def brings(self, table: Table) -> frozenset[str]:
        held = self._table(table)
        stored = (column for column in table.stored_columns if column.generated)
        return frozenset(column.name for column in stored if held.holds(column.source_name))

    def read(self, chunk: SourceChunk, table: Table) -> Iterator[pa.RecordBatch]:
        whole = replace(table, columns=tuple(map(_as_upstream, table.columns)))
        columns = {column.source_name: column.name for column in table.stored_columns}
        for batch in read_file(self._storage, SnapshotFile.from_json(chunk.place), whole):
            names = [name for name in batch.schema.names if name in columns]
            yield batch.select(names).rename_columns([columns[name] for name in names])

    def _table(self, table: Table) -> SnapshotTable:
        try:
            found = self.snapshot.table(table.schema_name, table.name)
        except RelayError as error:
            raise CopyError(str(error)) from error
        if found is None:
            raise CopyError(f"{self.describe()} has no table {table.full_name}")
        return found


def _as_upstream(column: Column) -> Column:
    """Return a column as it was before rules shaped it."""
    if not column.upstream_name:
        return column
    return replace(column, name=column.upstream_name, state=STATE_PUBLIC, upstream_name="")


def _columns(table: Table) -> str:
    return ", ".join(f"{column.name} ({column.kind})" for column in table.writable_columns)
