"""Write landed windows as the log half of a segment: their changes in one file, and its index."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import pyarrow as pa

from sluice.relay.archive.index import IndexedWindow, SegmentIndex, write_index
from sluice.relay.archive.segment import ArchiveFile, ArchiveSegment, LakeFile, day_of
from sluice.relay.archive.window_merging import MergeLimits, merge_groups, merge_windows
from sluice.relay.errors import RelayError, RelayGapError
from sluice.relay.log_file_writer import LogFileWriter
from sluice.relay.part import iter_parts
from sluice.relay.row_groups import PART_SCHEMA, Band
from sluice.relay.storage import Storage
from sluice.relay.window import WindowRecord

__all__ = ["OnWindowRows", "WrittenLog", "write_log"]

_TOKEN = re.compile(r"[A-Za-z0-9_.]+\Z")

OnWindowRows = Callable[[WindowRecord, pa.RecordBatch], None]
"""Called for every batch of changes that is written, in PART_SCHEMA, in order, with its window."""


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """The files written of the range `(lo, hi]`: all of a segment but its lake files."""

    lo: int
    hi: int
    cluster_id: int
    token: str
    windows: int
    transactions: int
    changes: int
    schema_version: int
    binlog_bytes: int
    log: ArchiveFile | None
    index: ArchiveFile
    tables: Mapping[int, int] = field(default_factory=dict)

    def segment(
        self, lake: Sequence[LakeFile] = (), binlog_bytes: int | None = None
    ) -> ArchiveSegment:
        """Return the segment, to be put into the archive.

        `binlog_bytes`: if it isn't the number of bytes that was read.
        """
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if binlog_bytes is not None:
            values["binlog_bytes"] = binlog_bytes
        values["tables"] = dict(sorted(self.tables.items()))
        return ArchiveSegment(**values, archived_ms=time.time_ns() // 1_000_000, lake=tuple(lake))


def write_log(  # noqa: PLR0913 what it works with
    source: Storage,
    archive: Storage,
    windows: Sequence[WindowRecord],
    token: str,
    *,
    limits: MergeLimits | None = None,
    seen: OnWindowRows | None = None,
) -> WrittenLog:
    """Write the log file and the index of `windows`, a chain of at least one.

    Both are durable on return, and no reader finds them before `Archive.append`.

    `source` is the storage of the windows' parts, the relay log's or an archive's. `token` makes
    the names unique: no two attempts may share it. In memory are one band (`limits`) and what
    writing it takes, however large a transaction is. Raises RelayCorruptError, RelayGapError,
    FileExistsError, OSError.
    """
    _check_chain(windows, token)
    lo, hi = windows[0].lo, windows[-1].hi
    stem = f"log/{day_of(lo)}/{lo:020d}-{hi:020d}-{token}"
    writing = _LogWrite(source, archive, f"{stem}.parquet", limits or MergeLimits(), seen)
    entries, log = writing.run(windows)
    index = SegmentIndex(
        lo,
        hi,
        windows[0].cluster_id,
        log.path if log else None,
        writing.footer_crc32c,
        tuple(entries),
    )
    index.check()
    return WrittenLog(
        lo=lo,
        hi=hi,
        cluster_id=index.cluster_id,
        token=token,
        windows=len(entries),
        transactions=sum(entry.window.transactions for entry in entries),
        changes=log.rows if log else 0,
        schema_version=windows[-1].schema_version,
        binlog_bytes=sum(part.bytes for window in windows for part in window.parts),
        log=log,
        index=write_index(archive, f"{stem}.windows", index),
        tables=writing.tables,
    )


def _check_chain(windows: Sequence[WindowRecord], token: str) -> None:
    if not windows or not _TOKEN.match(token):
        raise RelayError(
            f"{len(windows)} windows for the token {token!r}: at least one, and only letters,"
            " digits, . and _"
        )
    for before, window in itertools.pairwise(windows):
        if window.lo != before.hi:
            raise RelayGapError(
                f"a window ends at {before.hi}, and the next one to archive begins at {window.lo}"
            )
        if window.cluster_id != before.cluster_id:
            raise RelayError(f"the window at {window.lo} is of another cluster than the one before")


@dataclass(slots=True)
class _LogWrite:
    """One write of a log file, and the totals that result from it."""

    source: Storage
    archive: Storage
    path: str
    limits: MergeLimits
    seen: OnWindowRows | None
    tables: Mapping[int, int] = field(default_factory=dict)
    footer_crc32c: int = 0

    def run(
        self, windows: Sequence[WindowRecord]
    ) -> tuple[list[IndexedWindow], ArchiveFile | None]:
        if not any(part.rows for window in windows for part in window.parts):
            return [self._indexed(run, ()) for run in merge_groups(windows, self.limits)], None
        with self.archive.new_file(self.path) as sink:
            writer = LogFileWriter(sink)
            entries = [
                self._indexed(run, self._bands(run, writer))
                for run in merge_groups(windows, self.limits)
            ]
            writer.close()
        self.tables, self.footer_crc32c = writer.tables, writer.footer_crc32c
        return entries, ArchiveFile(self.path, writer.bytes, writer.rows, writer.crc32c)

    def _indexed(self, run: Sequence[WindowRecord], bands: Sequence[Band]) -> IndexedWindow:
        parts = [part for window in run for part in window.parts]
        return IndexedWindow(
            merge_windows(run),
            tuple(bands),
            min((part.min_commit_ts for part in parts), default=0),
            max((part.max_commit_ts for part in parts), default=0),
        )

    def _bands(self, run: Sequence[WindowRecord], writer: LogFileWriter) -> list[Band]:
        return [writer.write_band(changes) for changes in self._stretches(run)]

    def _stretches(self, run: Sequence[WindowRecord]) -> Iterator[pa.Table]:
        """Yield the windows' changes in tables of one band at most, as far as batches allow."""
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._batches(run):
            if held and (
                rows + batch.num_rows > self.limits.changes
                or size + batch.nbytes > self.limits.bytes
            ):
                yield pa.Table.from_batches(held, PART_SCHEMA)
                held, rows, size = [], 0, 0
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if held:
            yield pa.Table.from_batches(held, PART_SCHEMA)

    def _batches(self, run: Sequence[WindowRecord]) -> Iterator[pa.RecordBatch]:
        for window in run:
            for batch in iter_parts(self.source, window.parts):
                for piece in _pieces(batch, self.limits):
                    if self.seen is not None:
                        self.seen(window, piece)
                    yield piece


def _pieces(batch: pa.RecordBatch, limits: MergeLimits) -> Iterator[pa.RecordBatch]:
    """Split a batch into pieces within the limits; only a single row may be larger."""
    count = max(-(-batch.num_rows // limits.changes), -(-batch.nbytes // limits.bytes), 1)
    rows = max(1, -(-batch.num_rows // count))
    return (batch.slice(i, rows) for i in range(0, batch.num_rows, rows))
