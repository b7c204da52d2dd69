"""Write and read a snapshot's rows as files in an archive: Parquet, zstd.

Types and texts are those of `sluice.tidb.rows.arrow_schema`. Several files where a chunk is large,
so that each can be read, checked and loaded as a whole.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.relay.archive import SnapshotFile, SnapshotStore
from sluice.relay.checksum_writer import ChecksumWriter
from sluice.relay.errors import RelayCorruptError
from sluice.relay.storage import Storage
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Table

__all__ = ["read_file", "rows_schema", "write_files"]

FILE_ROW_BYTES = 48 << 20
"""Size of a file's rows in memory: a file has little more."""
GROUP_ROW_BYTES = 12 << 20
_COMPRESSION_LEVEL = 1


def rows_schema(table: Table, computed: Collection[str] | None = None) -> pa.Schema:
    """Return the columns of a snapshot's rows, in the types of `sluice.tidb.rows.arrow_schema`.

    They are all that rows hold. `computed`: the stored generated columns among them, None for all.
    """
    columns = [
        c for c in table.stored_columns if not c.generated or computed is None or c.name in computed
    ]
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])


def write_files(
    storage: Storage, folder: str, table: Table, batches: Iterable[pa.RecordBatch]
) -> list[SnapshotFile]:
    """Write rows as files in a folder of the archive; none if there are no rows.

    Each batch is in `rows_schema(table)` or without some generated columns. The files are durable,
    and in a snapshot once its manifest names them. Raises OSError.
    """
    token = secrets.token_hex(6)  # an attempt before this one may be under way yet
    generated = {column.name for column in table.stored_columns if column.generated}
    written: list[SnapshotFile] = []
    for groups in _files(batches):
        first = next(groups)
        computed = tuple(name for name in first.column_names if name in generated)
        path = f"{folder}/{token}-{len(written):05}.parquet"
        file = _write_file(
            storage, path, rows_schema(table, computed), itertools.chain([first], groups)
        )
        written.append(replace(file, computed=computed))
    return written


def read_file(storage: Storage, file: SnapshotFile, table: Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in `rows_schema(table, file.computed)`, after checking its checksum.

    Raises RelayCorruptError.
    """
    where = f"{storage.url}/{file.path}"
    wanted, rows = rows_schema(table, file.computed), 0
    try:
        reader = pq.ParquetFile(pa.BufferReader(SnapshotStore(storage).content(file)))
        if not reader.schema_arrow.equals(wanted):
            raise RelayCorruptError(
                f"{where}: it has the columns {reader.schema_arrow}, {table.full_name} has {wanted}"
            )
        for number in range(reader.num_row_groups):
            for batch in reader.read_row_group(number).combine_chunks().to_batches():
                rows += batch.num_rows
                yield batch
    except pa.ArrowException as error:
        raise RelayCorruptError(f"{where}: {error}") from error
    if rows != file.rows:
        raise RelayCorruptError(f"{where}: {rows} rows, the manifest has {file.rows}")


def _write_file(
    storage: Storage, path: str, schema: pa.Schema, groups: Iterable[pa.Table]
) -> SnapshotFile:
    rows = row_bytes = 0
    with storage.new_file(path) as sink:
        counted = ChecksumWriter(sink)
        with _writer(counted, schema) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=max(group.num_rows, 1))
                rows += group.num_rows
                row_bytes += group.nbytes
    return SnapshotFile(path, rows, counted.written, counted.crc32c, row_bytes)


def _writer(counted: ChecksumWriter, schema: pa.Schema) -> Any:
    return pq.ParquetWriter(
        pa.PythonFile(counted, mode="w"),
        schema,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        write_statistics=False,
    )


def _files(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[pa.Table]]:
    """Yield the groups of one file after another."""
    groups = _groups(batches)
    for first in groups:
        yield _one_file(first, groups)


def _one_file(first: pa.Table, groups: Iterator[pa.Table]) -> Iterator[pa.Table]:
    size = first.nbytes
    yield first
    while size < FILE_ROW_BYTES and (group := next(groups, None)) is not None:
        size += group.nbytes
        yield group


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gather batches to row groups."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= GROUP_ROW_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
