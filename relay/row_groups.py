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

import inspect
import itertools
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.relay.checksum_writer import ChecksumWriter
from sluice.relay.errors import RelayCorruptError, RelayError
from sluice.relay.part_schema import INSERT, PART_SCHEMA
from sluice.relay.storage import SeekableFile, Storage

__all__ = [
    "Band",
    "LogFileWriter",
    "RowGroup",
    "content_crc32c",
    "is_selection",
    "read_row_groups",
    "selection",
]

_KEY = b"sluice"
_PATH = re.compile(r"(?P<file>[^#]+\.parquet)#(?P<bands>\d+(?:-\d+)?(?:[+,]\d+(?:-\d+)?)*)\Z")
_MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 2**10
_BATCH_ROWS = 65_536
_COMPRESSION_LEVEL = 9
_CLUSTER_BYTES = 2 * 2**20
"""Bytes of rows with near keys that lie together; zstd's level 9 looks back over twice as many."""
_ID_BYTES = 2  # of a column with an id below 64
_OWN_GROUP_BYTES = 2**20
"""A table with as many bytes in a band has a row group of its own."""
_SHARED_GROUP_BYTES = 4 * 2**20
# a column of a row group is one page, so that all of it is compressed together
_PAGE_BYTES = 256 * 2**20

_ONE_PAGE = (
    {"max_rows_per_page": 2**31 - 1}
    if "max_rows_per_page" in inspect.signature(pq.write_table).parameters
    else {}
)
"""Writes a column as one page; older versions of pyarrow have no such limit."""
_ENCODING = {
    "commit_ts": "DELTA_BINARY_PACKED",
    "start_ts": "DELTA_BINARY_PACKED",
    "position": "DELTA_BINARY_PACKED",
    "row": "DELTA_LENGTH_BYTE_ARRAY",
}

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
    rows = [_row_buffers(chunk) for chunk in changes["row"].chunks]
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


def _row_buffers(column: pa.LargeBinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and bytes of the values."""
    if not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    offsets = row_offsets(column)
    data = column.buffers()[2]
    there = (
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    )
    return np.diff(offsets), there[offsets[0] : offsets[-1]]


class LogFileWriter:
    """Writes a log file band by band into a sink; the caller ends the sink behind `close`."""

    def __init__(self, sink: Any) -> None:
        self._out = ChecksumWriter(sink)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._out, mode="w"),
            PART_SCHEMA,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=["table_id", "schema_version", "kind"],
            column_encoding=_ENCODING,
            write_statistics=False,
            data_page_size=_PAGE_BYTES,
            **_ONE_PAGE,
            write_batch_size=2**20,
        )
        self._entries: list[list[Any]] = []
        self.rows = 0
        self.tables: dict[int, int] = {}
        """Rows by table id."""
        self.footer_crc32c = 0
        """Known behind `close`: what a part's descriptor has."""

    @property
    def bytes(self) -> int:
        """Return it for the file; whole behind `close`."""
        return self._out.written

    @property
    def crc32c(self) -> int:
        """Return it for the file; whole behind `close`."""
        return self._out.crc32c

    def write_band(self, changes: pa.Table) -> Band:
        """Write a band: changes in PART_SCHEMA, at least one."""
        return tuple(self._write_group(piece, tables) for piece, tables in _by_table(changes))

    def _write_group(self, changes: pa.Table, tables: Mapping[int, int]) -> RowGroup:
        begin = self._out.mark() or len(_MAGIC)
        self._writer.write_table(changes, row_group_size=changes.num_rows)
        size = self._out.written - begin
        self._entries.append(
            [
                changes.num_rows,
                begin,
                self._out.written,
                self._out.crc32c_since_mark,
                content_crc32c(changes),
                sorted(tables),
            ]
        )
        self.rows += changes.num_rows
        for table, rows in tables.items():
            self.tables[table] = self.tables.get(table, 0) + rows
        return RowGroup(len(self._entries) - 1, changes.num_rows, size, tuple(sorted(tables)))

    def close(self) -> None:
        """Write the footer."""
        self._writer.add_key_value_metadata(
            {_KEY: json.dumps(self._entries, separators=(",", ":"))}
        )
        self._out.mark()
        self._writer.close()
        self.footer_crc32c = self._out.crc32c_since_mark


def _by_table(changes: pa.Table) -> Iterator[tuple[pa.Table, dict[int, int]]]:
    """Yield changes cut into row groups, with the number of rows of each table."""
    ordered, ids, sizes = _ordered(changes.combine_chunks())
    cuts = [*np.flatnonzero(np.append(True, ids[1:] != ids[:-1])).tolist(), len(ids)]
    begin, held = 0, 0
    there: dict[int, int] = {}
    for first, end in itertools.pairwise(cuts):
        size = int(sizes[first:end].sum())
        if there and (size >= _OWN_GROUP_BYTES or held + size > _SHARED_GROUP_BYTES):
            yield ordered.slice(begin, first - begin), there
            begin, held, there = first, 0, {}
        there[int(ids[first])] = end - first
        held += size
        if size >= _OWN_GROUP_BYTES:
            yield ordered.slice(begin, end - begin), there
            begin, held, there = end, 0, {}
    if there:
        yield ordered.slice(begin), there


def _ordered(changes: pa.Table) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Sort changes by table, and return them with the rows' table ids and sizes in that order.

    Within a table, rows with near keys lie together, some megabytes of them by (commit_ts,
    position). That is near enough for the compression to find a row's images in each other, and
    leaves few jumps in the other columns.
    """
    ids = changes["table_id"].to_numpy()
    row = changes["row"].chunk(0)
    sizes, _ = _row_buffers(row)
    by_key = np.lexsort((_sort_prefixes(row, changes["kind"].to_numpy()), ids))
    stretch = np.empty(len(ids), np.int64)
    stretch[by_key] = np.cumsum(sizes[by_key]) // _CLUSTER_BYTES
    order = np.lexsort((stretch, ids))
    return changes.take(pa.array(order)).combine_chunks(), ids[order], sizes[order]


def _sort_prefixes(column: pa.LargeBinaryArray, kinds: np.ndarray) -> np.ndarray:
    """Return each row's first bytes, as a number to sort by: the key, as a rule.

    An insert's begins with the handle, the others with a column's id, which is left out. Where it
    isn't so files are larger, and nothing else.
    """
    begins = row_offsets(column)[:-1] + np.where(kinds == INSERT, 0, _ID_BYTES)
    padded = np.concatenate(
        [np.frombuffer(column.buffers()[2], np.uint8), np.zeros(_ID_BYTES + 8, np.uint8)]
    )
    key = np.zeros(len(begins), np.uint64)
    for byte in range(8):
        key = key << np.uint64(8) | padded[begins + byte].astype(np.uint64)
    return key


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
        if len(tail) >= 12 and tail[-4:] == _MAGIC
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
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
        entries = json.loads(metadata.metadata[_KEY])
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
