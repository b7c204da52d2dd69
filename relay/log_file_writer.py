"""Write log files of the archive, band by band."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.relay.checksum_writer import ChecksumWriter
from sluice.relay.part_descriptor import INSERT
from sluice.relay.row_groups import (
    FOOTER_KEY,
    MAGIC,
    PART_SCHEMA,
    Band,
    RowGroup,
    content_crc32c,
    row_buffers,
    row_offsets,
)

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


class LogFileWriter:
    """Write a log file band by band into a sink; the caller ends the sink behind `close`."""

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
        begin = self._out.mark() or len(MAGIC)
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
            {FOOTER_KEY: json.dumps(self._entries, separators=(",", ":"))}
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
    sizes, _ = row_buffers(row)
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
