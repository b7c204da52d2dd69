"""Aggregate a bucket's rows where they were computed, so that only the result travels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from sluice.etl.copy.snapshot_files import write_files
from sluice.etl.history.as_of.bucket import Results
from sluice.etl.history.as_of.diff import diff_rows
from sluice.etl.history.as_of.fingerprint import fingerprint
from sluice.etl.history.as_of.lineage import TableGroup
from sluice.etl.history.lake import LakeColumn, lake_columns
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Table

CHUNK_ROWS = 20_000
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class AggregateResult(NamedTuple):
    """Something about a table (`schema.table`) at a moment (TSO)."""

    moment: int
    name: str
    payload: bytes


class Aggregation(Protocol):
    """Make results of the rows of one bucket."""

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]: ...


class CollectRows:
    """The rows themselves, as Arrow IPC streams."""

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        for (moment, name), rows in found.items():
            for first in range(0, rows.num_rows, CHUNK_ROWS):
                yield AggregateResult(moment, name, to_ipc(rows.slice(first, CHUNK_ROWS)))


class CollectFingerprints:
    """Fingerprints, as JSON."""

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        for (moment, name), rows in found.items():
            table = family.version_at(moment, name).table
            yield AggregateResult(
                moment, name, json.dumps(fingerprint(table, [rows]).to_json()).encode()
            )


@dataclass(frozen=True, slots=True)
class WriteSnapshotFiles:
    """The rows as files of a base, below `folder` of the archive at `url`.

    What comes back is each file as JSON.
    """

    url: str
    folder: str

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        storage = open_storage(self.url)
        for (moment, name), rows in found.items():
            table = family.version_at(moment, name).table
            held = [c.name for c in table.stored_columns if c.name in rows.column_names]
            batches = rows.select(held).to_batches(CHUNK_ROWS)
            for file in write_files(storage, f"{self.folder}/{table.id}", table, batches):
                yield AggregateResult(moment, name, json.dumps(file.to_json()).encode())


@dataclass(frozen=True, slots=True)
class CollectDiff:
    """Collect the differences between a moment and an earlier one, as Arrow IPC streams.

    See `sluice.etl.history.as_of.diff`.
    """

    earlier: int
    later: int

    def __call__(self, family: TableGroup, found: Results) -> Iterator[AggregateResult]:
        for name in family.results[self.later].keys() & family.results[self.earlier].keys():
            before, after = (
                family.version_at(moment, name) for moment in (self.earlier, self.later)
            )
            rows = diff_rows(before, found[self.earlier, name], after, found[self.later, name])
            for first in range(0, rows.num_rows, CHUNK_ROWS):
                yield AggregateResult(self.later, name, to_ipc(rows.slice(first, CHUNK_ROWS)))


def to_ipc(rows: pa.Table) -> bytes:
    """Encode rows as an Arrow IPC stream; `from_ipc` is the inverse."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def from_ipc(payload: bytes) -> list[pa.RecordBatch]:
    """Record batches."""
    return list(pa.ipc.open_stream(payload))


def typed_columns(table: Table, left_out: tuple[str, ...] = ()) -> list[LakeColumn]:
    """Return the columns that users know, each under its own name and with its type in the lake."""
    known = {column.name for column in table.stored_columns} - set(left_out)
    return [column for column in lake_columns(table) if column.source in known]


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Results of `sluice.etl.history.as_of.aggregations.CollectRows` of one table become its rows.

    What a type can't hold is null.
    """

    table: Table
    left_out: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = typed_columns(self.table, self.left_out)
        schema = pa.schema([pa.field(column.source, column.type) for column in columns])
        for batch in batches:
            for payload in batch.column("payload"):
                for rows in from_ipc(payload.as_buffer()):
                    values = [column.convert(rows.column(column.source))[0] for column in columns]
                    yield pa.RecordBatch.from_arrays(
                        [
                            value.cast(field.type)
                            for value, field in zip(values, schema, strict=True)
                        ],
                        schema=schema,
                    )
