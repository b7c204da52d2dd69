"""Log files of the archive: Parquet in PART_SCHEMA, read and checked by row group.

A log file holds **bands**: stretches of changes in commit order that are as large as a
reader may have in memory. Within a band tables lie together, each row group with one large table or
several small ones, so a reader of a few tables reads little. It restores commit order, band by
band. The path of a part names its row groups:

    log/2026-11-22/<lo>-<hi>-<token>.parquet#3-5,6-9
        row groups 3 to 5 are a band, 6 to 9 the next
    log/2026-11-22/<lo>-<hi>-<token>.parquet#3+5,7
        the same with the row groups of some tables only

A reader checks everything that it uses before decoding it. The metadata of the file's footer holds
under `sluice` a JSON list with an entry `[rows, begin, end, crc, content_crc, [table ids]]` for
each row group: the bytes `[begin, end)` that it fills in the file, their CRC-32C, and the CRC-32C
of its columns' values (`content_crc32c`). The part's descriptor has the footer's CRC-32C.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.storage import SeekableFile, Storage

__all__ = [
    "PART_SCHEMA",
    "Band",
    "RowGroup",
    "content_crc32c",
    "is_selection",
    "read_row_groups",
    "selection",
]


PART_SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("row", pa.large_binary(), nullable=False),
    ]
)
"""One row a row change; `kind` is 0 insert, 1 update, 2 delete; `row` is TiDB's old row format, as
in the binlog.
"""

FOOTER_KEY = b"sluice"
_PATH = re.compile(r"(?P<file>[^#]+\.parquet)#(?P<bands>\d+(?:-\d+)?(?:[+,]\d+(?:-\d+)?)*)\Z")
MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 2**10
_BATCH_ROWS = 65_536

_HINT = (
    "restore the file from a copy; a moment before it, or behind a later snapshot, can be had"
    " without it"
)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group as the index of windows has it.

    It has its `number` in the file, `rows`, `bytes` there, and the ids of the tables with rows in
    it.
    """

    number: int
    rows: int
    bytes: int
    tables: tuple[int, ...]


Band = tuple[RowGroup, ...]
"""Row groups with rows that belong together: in commit order they are a stretch of the log."""


def selection(file: str, bands: Iterable[Band]) -> str:
    """Return the path that names these row groups of a log file; at least one."""
    return (
        f"{file}#{','.join('+'.join(_ranges([group.number for group in band])) for band in bands)}"
    )


def is_selection(path: str) -> bool:
    """Return whether a path names row groups of a log file, and not a file."""
    return "#" in path


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield str(numbers[begin]) if i == begin + 1 else f"{numbers[begin]}-{numbers[i - 1]}"
            begin = i


def _parsed(path: str) -> tuple[str, list[list[int]]]:
    match = _PATH.match(path)
    if match is None:
        raise RelayCorruptError(f"{path}: these aren't row groups of a log file", hint=_HINT)
    bands = []
    for band in match["bands"].split(","):
        numbers: list[int] = []
        for span in band.split("+"):
            first, _, last = span.partition("-")
            numbers += range(int(first), int(last or first) + 1)
        bands.append(numbers)
    return match["file"], bands


def content_crc32c(changes: pa.Table) -> int:
    """Compute the CRC-32C of changes in PART_SCHEMA, however they are cut and stored.

    It covers column by column the values, little-endian; of `row` the lengths as int64, then the
    bytes.
    """
    crc = 0
    for column in changes.columns[:-1]:
        for chunk in column.chunks:
            crc = google_crc32c.extend(crc, chunk.to_numpy().tobytes())
    rows = [row_buffers(chunk) for chunk in changes["row"].chunks]
    for lengths, _ in rows:
        crc = google_crc32c.extend(crc, lengths.tobytes())
    for _, data in rows:
        crc = google_crc32c.extend(crc, data.tobytes())
    return crc


def row_offsets(column: pa.LargeBinaryArray) -> np.ndarray:
    """Return the offsets of a large_binary array's values, and the last one's end, as int64."""
    return np.frombuffer(column.buffers()[1], np.int64)[
        column.offset : column.offset + len(column) + 1
    ]


def row_buffers(column: pa.LargeBinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths and the bytes of the values."""
    if not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    offsets = row_offsets(column)
    data = column.buffers()[2]
    there = (
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    )
    return np.diff(offsets), there[offsets[0] : offsets[-1]]


@dataclass(slots=True)
class _LogFile:
    """A log file with a footer that has been checked."""

    where: str
    file: pa.NativeFile
    metadata: pq.FileMetaData
    entries: list[list[Any]]
    size: int

    def table(self, numbers: Sequence[int]) -> pa.Table:
        """Return the rows of row groups as they lie, checked. Raises RelayCorruptError."""
        pieces = []
        for number in numbers:
            rows, begin, end, crc, content, _ = self.entries[number]
            self.file.seek(begin)
            data = self.file.read(end - begin)
            if len(data) != end - begin or google_crc32c.value(data) != crc:
                raise RelayCorruptError(
                    f"{self.where}: row group {number}, bytes {begin} to {end}: they aren't what"
                    " was written",
                    hint=_HINT,
                )
            piece = self._decoded(number, begin, data)
            if piece.num_rows != rows or content_crc32c(piece) != content:
                raise RelayCorruptError(
                    f"{self.where}: row group {number} holds other rows than were to be written",
                    hint=_HINT,
                )
            pieces.append(piece)
        return pa.concat_tables(pieces)

    def _decoded(self, number: int, begin: int, data: bytes) -> pa.Table:
        source = pa.PythonFile(_FileSlice(begin, data, self.size), mode="r")
        try:
            read = pq.ParquetFile(source, metadata=self.metadata, pre_buffer=False).read_row_group(
                number, use_threads=False
            )
            return read.cast(PART_SCHEMA)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise RelayCorruptError(
                f"{self.where}: row group {number}: {error}", hint=_HINT
            ) from error


class _FileSlice(SeekableFile):
    """A file of which one stretch is known."""

    def __init__(self, begin: int, data: bytes, size: int) -> None:
        super().__init__(size)
        self._begin, self._data = begin, data

    def read(self, size: int = -1) -> bytes:
        begin = self._at - self._begin
        if begin < 0:
            raise ValueError(f"byte {self._at} isn't in the row group")
        data = self._data[begin:] if size < 0 else self._data[begin : begin + size]
        self._at += len(data)
        return data


def read_row_groups(
    storage: Storage, path: str, footer_crc32c: int, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the changes that `path` names in commit order, in PART_SCHEMA.

    One band is in memory at a time, and checked before its first batch comes.

    `footer_crc32c`, `rows`: as in the part's descriptor. Raises RelayCorruptError.
    """
    name, bands = _parsed(path)
    where = f"archive file {storage.url}/{name}"
    try:
        file = storage.open(name)
    except FileNotFoundError:
        raise RelayCorruptError(f"{where}: the file is missing", hint=_HINT) from None
    with file:
        log_file = _opened(where, file, footer_crc32c)
        if any(number >= len(log_file.entries) for band in bands for number in band):
            raise RelayCorruptError(f"{where}: it has no such row groups as {path}", hint=_HINT)
        there = sum(log_file.entries[number][0] for band in bands for number in band)
        if there != rows:
            raise RelayCorruptError(
                f"{path} of {storage.url}: {there} rows, but {rows} are noted", hint=_HINT
            )
        for band in bands:
            yield from _in_order(log_file.table(band)).to_batches(max_chunksize=_BATCH_ROWS)


def _in_order(changes: pa.Table) -> pa.Table:
    order = np.lexsort([changes[name].to_numpy() for name in ("position", "start_ts", "commit_ts")])
    return changes.combine_chunks().take(pa.array(order)).combine_chunks()


def _opened(where: str, file: pa.NativeFile, footer_crc32c: int) -> _LogFile:
    """Open a log file and its footer, and check the footer's checksum before it is parsed."""
    size = file.size()
    tail = _read_at(file, max(0, size - _TAIL_BYTES))
    length = (
        struct.unpack("<I", tail[-8:-4])[0] + 8
        if len(tail) >= 12 and tail[-4:] == MAGIC
        else size + 1
    )
    if length > size:
        raise RelayCorruptError(
            f"{where}: {size} bytes without an end: it was cut or damaged", hint=_HINT
        )
    footer = tail[-length:] if length <= len(tail) else _read_at(file, size - length)
    if google_crc32c.value(footer) != footer_crc32c:
        raise RelayCorruptError(
            f"{where}: the footer (the last {length} bytes) isn't what was written",
            hint=_HINT,
        )
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + footer))
        entries = json.loads(metadata.metadata[FOOTER_KEY])
    except (pa.ArrowException, ValueError, OSError, KeyError, TypeError) as error:
        raise RelayCorruptError(
            f"{where}: the footer can't be read: {error}", hint=_HINT
        ) from error
    if not metadata.schema.to_arrow_schema().equals(PART_SCHEMA):
        raise RelayError(
            f"{where}: unknown columns {metadata.schema.names}",
            hint="read it with a newer Sluice",
        )
    return _LogFile(where, file, metadata, entries, size)


def _read_at(file: pa.NativeFile, begin: int) -> bytes:
    file.seek(begin)
    data: bytes = file.read()
    return data
