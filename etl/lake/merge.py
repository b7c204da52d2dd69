"""Files of the lake become fewer and larger ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from etl.lake._file import FileWriter, Place
from etl.lake.live import range_of
from relay import RelayCorruptError
from relay.archive import LakeFile
from relay.storage import Storage

__all__ = ["merge_lake", "remove_merged"]

LARGE_BYTES = 128 * 2**20
"""A file of this size is merged no more."""
LARGEST_BYTES = 512 * 2**20
_ROW_GROUP_BYTES = 64 * 2**20
_BATCH_ROWS = 16_384
_READ_BYTES = 2**20


def merge_lake(storage: Storage, files: Sequence[LakeFile], token: str) -> tuple[LakeFile, ...]:
    """Write the files of one or several volumes that follow one another as few files: those of a table, version and UTC
    day together, as far as they are small. What the new volume has instead of `files`; large ones are in it as they
    are.

    A file is seen when all are written, and `files` are removed by none but `remove_merged`: so who reads the folders
    sees every row, and until then may see it twice, unless it goes by `live_files`. `token` is one that no other
    attempt has. Memory is some 300 MB whatever the files. Raises RelayCorruptError for a file that isn't as it was
    written, OSError.
    """
    kept: list[LakeFile] = []
    writers: list[FileWriter] = []
    try:
        for group in _groups(files):
            if len(group) == 1:
                kept += group
            else:
                writers.append(_merged(storage, group, token))
        while writers:
            kept.append(writers.pop().publish())
    except BaseException as error:
        for writer in writers:
            writer.abandon(type(error), error, error.__traceback__)
        raise
    return tuple(sorted(kept, key=lambda file: file.path))


def remove_merged(storage: Storage, before: Sequence[LakeFile], after: Sequence[LakeFile]) -> int:
    """Remove the files that the volume has no more, once the archive says so; how many."""
    gone = {file.path for file in before} - {file.path for file in after}
    for path in sorted(gone):
        storage.remove(path)
    return len(gone)


def _groups(files: Sequence[LakeFile]) -> Iterator[list[LakeFile]]:
    """Neighbours that are to be one file."""

    def folder(file: LakeFile) -> str:
        return file.path.rpartition("/")[0]

    for _, found in itertools.groupby(sorted(files, key=lambda file: (folder(file), range_of(file.path))), key=folder):
        group: list[LakeFile] = []
        for file in found:
            size = sum(other.bytes for other in group)
            if group and (file.bytes >= LARGE_BYTES or size >= LARGE_BYTES or size + file.bytes > LARGEST_BYTES):
                yield group
                group = []
            group.append(file)
        yield group


def _merged(storage: Storage, group: Sequence[LakeFile], token: str) -> FileWriter:
    first, last = group[0], group[-1]
    name = f"{range_of(first.path)[0]:020d}-{range_of(last.path)[1]:020d}-{token}.parquet"
    path = f"{first.path.rpartition('/')[0]}/{name}"
    place = Place(path, last.schema, last.table, last.table_id, last.schema_version, last.day)
    writer: FileWriter | None = None
    try:
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in itertools.chain.from_iterable(_batches(storage, file) for file in group):
            writer = writer or FileWriter(storage, place, batch.schema)
            waiting.append(batch)
            size += batch.nbytes
            if size >= _ROW_GROUP_BYTES:
                writer.write(pa.Table.from_batches(waiting))
                waiting, size = [], 0
        assert writer is not None, "no file of the lake is empty"
        if waiting:
            writer.write(pa.Table.from_batches(waiting))
        writer.end()
    except BaseException as error:
        if writer is not None:
            writer.abandon(type(error), error, error.__traceback__)
        raise
    return writer


def _batches(storage: Storage, file: LakeFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file, checked."""
    where = f"lake file {storage.url}/{file.path}"
    way_out = (
        "restore the file from a copy, or have the lake's part of these windows written anew from the archive's log"
    )
    try:
        with storage.open(file.path) as opened:
            crc = 0
            while data := opened.read(_READ_BYTES):
                crc = google_crc32c.extend(crc, data)
            if opened.size() != file.bytes or crc != file.crc32c:
                raise RelayCorruptError(
                    f"{where}: {opened.size()} bytes with CRC-32C {crc:#010x}, {file.bytes} with {file.crc32c:#010x}"
                    " were written",
                    way_out=way_out,
                )
            opened.seek(0)
            yield from pq.ParquetFile(opened).iter_batches(batch_size=_BATCH_ROWS)
    except FileNotFoundError:
        raise RelayCorruptError(f"{where}: the file is missing", way_out=way_out) from None
    except pa.ArrowInvalid as error:
        raise RelayCorruptError(f"{where}: {error}", way_out=way_out) from error
