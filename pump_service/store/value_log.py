"""Manage the value log: segments that one writer appends to and any thread reads."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sluice.pump_service import kernel
from sluice.pump_service.histogram import Histogram, SizeHistogram, doubling_bounds
from sluice.pump_service.store import failpoints
from sluice.pump_service.store.errors import CorruptRecordError
from sluice.pump_service.store.scan import ScanBatch, scan_segment
from sluice.pump_service.store.segment import (
    BLOCK_BYTES,
    RECORD_MAGIC,
    SMALL_WRITE_BYTES,
    OpenDescriptor,
    RecordPointer,
    Segment,
    crc32c,
)

_SECONDS_BOUNDS = doubling_bounds(0.00005, 20)
_BYTES_BOUNDS = doubling_bounds(16, 25)


class WriteMetrics:
    """Measure writes in seconds and bytes of payload.

    `single` is one record from its submission to its answer, `batch` a group of them; `to_disk`,
    `fsync` and `rotate` are the steps of that; `catch_up` is one pass of the indexer over the
    value log.
    """

    def __init__(self) -> None:
        self.single = Histogram(_SECONDS_BOUNDS)
        self.batch = Histogram(_SECONDS_BOUNDS)
        self.to_disk = Histogram(_SECONDS_BOUNDS)
        self.fsync = Histogram(_SECONDS_BOUNDS)
        self.rotate = Histogram(_SECONDS_BOUNDS)
        self.single_size = SizeHistogram(_BYTES_BOUNDS)
        self.batch_size = Histogram(_BYTES_BOUNDS)
        self.catch_up = Histogram(doubling_bounds(0.001, 22))


log = logging.getLogger(__name__)

MIN_FINALIZED_BYTES = 50 << 10
_MAX_COPIED_BYTES = 8 << 20
_NAME = re.compile(r"^(\d{6,10})\.vlog$")


class AppendRun(NamedTuple):
    """Describe consecutive records of an append in one segment: [first, first + len(offsets))."""

    fid: int
    first: int
    offsets: list[int]


class ValueLog:
    """Hold all segments in `directory`. The writer owns `append`, `rotate_if_full` and `close`."""

    def __init__(self, directory: Path, segment_limit: int, *, sync: bool = True) -> None:
        """Open every segment; the highest one is appended to unless it is sealed.

        Raises OSError if the directory can't be used.
        """
        self._dir = directory
        self._limit = segment_limit
        self._sync = sync
        self.fsync_seconds = 0.0
        self.timings = WriteMetrics()
        self._lock = threading.Lock()
        self._skips: dict[tuple[int, int], int] = {}
        self._bad: set[tuple[int, int]] = set()
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True)
            _sync_directory(directory.parent)
        self._names = OpenDescriptor(directory, os.O_RDONLY | os.O_DIRECTORY)
        fids = sorted(int(m[1]) for entry in directory.iterdir() if (m := _NAME.match(entry.name)))
        self._torn_at: RecordPointer | None = None
        self._segments = {fid: Segment(self.path_of(fid), fid) for fid in fids}
        for segment in self._segments.values():
            if not segment.sealed:
                segment.max_ts = self._find_max_ts(segment)
        if fids and not self._segments[fids[-1]].sealed:
            self._current = self._segments[fids[-1]]
        else:
            self._current = self._create(fids[-1] + 1 if fids else 0)
        for segment in self._segments.values():
            if segment is not self._current:
                segment.close_until_read()

    def path_of(self, fid: int) -> Path:
        """Return the file of a segment."""
        return self._dir / f"{fid:06d}.vlog"

    def _create(self, fid: int) -> Segment:
        segment = Segment(self.path_of(fid), fid, create=True)
        # or a power cut may remove the file's name, and so everything in it
        os.fsync(self._names.fd)
        with self._lock:
            self._segments[fid] = segment
        failpoints.hit("rotate.after_create")
        return segment

    def _find_max_ts(self, segment: Segment) -> int:
        top = end = 0
        holes: list[int] = []

        def skipped(segment: Segment, begin: int, size: int) -> None:
            if begin + size < segment.size or not segment.is_zero(begin, segment.size):
                self.record_skipped(segment, begin, size)
                holes.append(begin)

        for batch in scan_segment(segment, 0, segment.size, skipped):
            top = max(
                top,
                int(
                    np.where(
                        (batch.tps == 0) & (batch.commits == 0), batch.starts, batch.commits
                    ).max()
                ),
            )
            end = batch.end
        written = end if segment.is_zero(end, segment.size) else segment.size
        for hole in holes:  # the second block of a small append, without its first one?
            if written - hole <= SMALL_WRITE_BYTES and segment.is_zero(
                hole, hole - hole % BLOCK_BYTES + BLOCK_BYTES
            ):
                end = hole
                break
        self._torn_at = RecordPointer(segment.fid, end) if end < segment.size else None
        return top

    def cut_torn_end(self, indexed: RecordPointer | None) -> None:
        """Move the torn tail of an interrupted write to a file beside it; truncate unused room.

        Call it before the first append: afterwards, unreadable bytes were acknowledged once.
        `indexed` is the last record that the index knows. If it lies in what would be moved, this
        was no interrupted write, and nothing is changed.
        """
        torn, segment = self._torn_at, self._current
        if torn is None or torn.fid != segment.fid:
            return
        size = segment.size - torn.offset
        is_room = segment.is_zero(torn.offset, segment.size)
        if indexed is not None and torn <= indexed:
            if is_room:
                self.record_skipped(segment, torn.offset, size)
            return
        if is_room:
            segment.cut(torn.offset, None)
            log.info(
                "%s: the pump did not stop cleanly: truncated %d preallocated bytes",
                segment.path,
                size,
            )
            return
        aside = segment.path.with_name(f"{segment.path.name}.torn-{torn.offset}")
        segment.cut(torn.offset, aside)
        _sync_directory(self._dir)
        with self._lock:
            self._skips = {at: size for at, size in self._skips.items() if at < torn}
        log.warning(
            "%s ended in %d bytes of an interrupted write that was never acknowledged: moved to %s",
            segment.path, size, aside,
        )  # fmt: skip

    def record_skipped(self, segment: Segment, begin: int, size: int) -> None:
        """Count and log an unreadable stretch that a scan met, the first time."""
        with self._lock:
            known = self._skips.get((segment.fid, begin), 0)
            self._skips[segment.fid, begin] = max(known, size)
        if not known:
            log.error("%s: skipped %d unreadable bytes at offset %d", segment.path, size, begin)

    def given_up(self, fid: int, offset: int) -> bool:
        """Return whether an operator has given up the record there, by the file `lost_mark`."""
        return self.lost_mark(fid, offset).exists()

    def lost_mark(self, fid: int, offset: int) -> Path:
        """Return the file by which an operator gives up a record."""
        path = self.path_of(fid)
        return path.with_name(f"{path.name}.lost-{offset}")

    def reopen_if_replaced(self, fid: int) -> None:
        """Reopen a sealed segment if its file was replaced, as by a copy moved into its place."""
        segment = self.segment(fid)
        if segment is None or segment is self._current or not segment.was_replaced():
            return
        restored = Segment(segment.path, fid)
        restored.max_ts = max(restored.max_ts, segment.max_ts)
        with self._lock:
            if self._segments.get(fid) is segment:
                self._segments[fid] = restored
        log.warning("%s was replaced: reading continues with the new file", segment.path)

    @property
    def skipped_bytes(self) -> int:
        """Return the bytes of unreadable stretches that scans met, each stretch once."""
        with self._lock:
            return sum(self._skips.values())

    @property
    def corrupt_records(self) -> int:
        """Return how many distinct pointers led to no good record."""
        return len(self._bad)

    def report_corrupt(self, fid: int, offset: int, what: str) -> None:
        """Count and log a bad record, the first time it is met."""
        with self._lock:
            if (fid, offset) in self._bad:
                return
            self._bad.add((fid, offset))
        log.error(
            "%s: offset %d: %s; its content is excluded from all reads",
            self.path_of(fid),
            offset,
            what,
        )

    @property
    def end(self) -> RecordPointer:
        """Return where the next record goes."""
        return RecordPointer(self._current.fid, self._current.size)

    @property
    def first(self) -> RecordPointer:
        """Return the beginning of the oldest segment."""
        with self._lock:
            return RecordPointer(min(self._segments), 0)

    def segments(self) -> list[Segment]:
        """Return all segments, oldest first."""
        with self._lock:
            return [self._segments[fid] for fid in sorted(self._segments)]

    def segment(self, fid: int) -> Segment | None:
        """Return the segment, or None if it has been purged."""
        return self._segments.get(fid)

    def append(
        self, payloads: list[bytes] | tuple[bytes, ...], timestamps: list[int]
    ) -> list[AppendRun]:
        """Write records and make them durable (one fdatasync unless a segment ends among them).

        The footer counts `timestamps`: commit_ts, of Prewrites without one start_ts. After
        DiskFullError nothing may be acknowledged, and the log is as good as before. After another
        OSError it is unknown what was written, and the log must not be used any more.
        """
        runs: list[AppendRun] = []
        first, count = 0, len(payloads)
        while first < count:
            self.rotate_if_full()
            segment = self._current
            parts, offsets = _framed(tuple(payloads), first, segment.size, self._limit)
            began = time.monotonic()
            segment.write(parts, in_room=self._sync)
            self.timings.to_disk.observe(time.monotonic() - began)
            failpoints.hit("writer.after_write")
            if self._sync:
                began = time.monotonic()
                segment.sync()
                took = time.monotonic() - began
                self.fsync_seconds += took
                self.timings.fsync.observe(took)
            failpoints.hit("writer.after_sync")
            end = first + len(offsets)
            segment.max_ts = max(segment.max_ts, *timestamps[first:end])
            runs.append(AppendRun(segment.fid, first, offsets))
            first = end
        return runs

    def rotate_if_full(self) -> None:
        """Seal the current segment and begin the next one if it exceeds the limit."""
        if self._current.size > self._limit:
            began = time.monotonic()
            if not self._current.sealed:
                self._current.seal()
            self._current = self._create(self._current.fid + 1)
            self.timings.rotate.observe(time.monotonic() - began)

    def close(self) -> None:
        """Seal the current segment if it is worth it; a smaller one is scanned at the next open."""
        if self._current.sealed:
            return
        if self._current.size >= MIN_FINALIZED_BYTES:
            self._current.seal()
        else:
            self._current.leave_no_room()

    def read(self, pointer: RecordPointer) -> bytes:
        """Return the payload at `pointer`.

        Raises CorruptRecordError if there is no good record or the segment has been purged.
        """
        segment = self.segment(pointer.fid)
        if segment is None:
            raise CorruptRecordError(
                str(self.path_of(pointer.fid)),
                pointer.offset,
                "the segment does not exist (purged?)",
            )
        return segment.read_record(pointer.offset)

    def holds_record(self, pointer: RecordPointer) -> bool:
        """Return whether a good record, or the end of its segment's records, lies at `pointer`."""
        segment = self.segment(pointer.fid)
        if segment is None or not 0 <= pointer.offset <= segment.size:
            return False
        if pointer.offset == segment.size:
            return True
        try:
            segment.read_record(pointer.offset)
        except CorruptRecordError:
            return False
        return True

    def distance(self, begin: RecordPointer, end: RecordPointer) -> int:
        """Return the bytes of segments between two pointers."""
        if begin >= end:
            return 0
        sizes = {s.fid: s.size for s in self.segments() if begin.fid <= s.fid < end.fid}
        return sum(sizes.values()) + end.offset - begin.offset

    def scan(self, begin: RecordPointer, end: RecordPointer) -> Iterator[ScanBatch]:
        """Yield every readable record in [begin, end), in order.

        Unreadable stretches are counted, logged once, and skipped.
        """
        for segment in self.segments():
            if begin.fid <= segment.fid <= end.fid:
                lower = begin.offset if segment.fid == begin.fid else 0
                upper = end.offset if segment.fid == end.fid else segment.size
                yield from scan_segment(segment, lower, upper, self.record_skipped)

    def purge(self, ts: int, before: int) -> list[int]:
        """Remove sealed segments below number `before` whose timestamps are all <= ts.

        Return their numbers.

        The newest segment always stays.
        """
        with self._lock:
            newest = max(self._segments)
            doomed = [
                s for s in self._segments.values() if s.fid < min(before, newest) and s.max_ts <= ts
            ]
            for segment in doomed:
                segment.purged = True
                del self._segments[segment.fid]
        for segment in sorted(doomed, key=lambda s: s.fid):
            segment.path.unlink(missing_ok=True)
            failpoints.hit("gc.after_unlink")
        return sorted(s.fid for s in doomed)

    @property
    def disk_bytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(s.size for s in self.segments())


def _framed(
    payloads: tuple[bytes, ...], first: int, offset: int, limit: int
) -> tuple[list[bytes], list[int]]:
    """Return records as kernel.framed does; large ones aren't copied."""
    if sum(map(len, payloads)) <= _MAX_COPIED_BYTES:
        data, offsets = kernel.framed(payloads, first, offset, limit, RECORD_MAGIC, crc32c)
        return [data], offsets
    return kernel.framed_parts(payloads, first, offset, limit, RECORD_MAGIC, crc32c)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
