"""Read a range of commit timestamps in bulk: its transactions and their Prewrites.

The index has the places of records but not their kinds, so a chunk of it is resolved in three
steps, each over whole arrays. First come the entries of the chunk, sorted by place; then the first
bytes of those records, read in long runs; then Commits are joined with Prewrites by start_ts.
Prewrites in front of the chunk are looked up one by one.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.pump_service.store import kernel
from sluice.pump_service.store.committed_transactions import (
    CommittedTransactions,
    UnreadableRecord,
    by_commit,
    groups,
)
from sluice.pump_service.store.errors import CorruptRecordError
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.missing_prewrites import MissingPrewrites
from sluice.pump_service.store.record_reader import Ints, RecordHeads, RecordReader
from sluice.pump_service.store.records import WindowReach
from sluice.pump_service.store.scan import scan_segment
from sluice.pump_service.store.segment import RecordPointer
from sluice.pump_service.store.unreadable_ranges import UnreadableRange
from sluice.pump_service.store.value_log import ValueLog
from sluice.tidb.binlog_kinds import COMMIT
from sluice.tidb.window_schema import WINDOW_SCHEMA

log = logging.getLogger(__name__)

CHUNK_ENTRIES = 16_384
BATCH_BYTES = 2 << 20
BATCH_ROWS = 32_768
_MAX_CACHED_CHUNKS = 32
_MAX_REMEMBERED = 10_000


class WindowReader:
    """Read ranges, in any number of threads.

    The last chunks are cached without payloads: `bounds` reads a range that is usually read next,
    often by several readers.
    """

    def __init__(
        self, value_log: ValueLog, index: BinlogIndex, gaps: Callable[[], Sequence[UnreadableRange]]
    ) -> None:
        self._log, self._index, self._gaps = value_log, index, gaps
        self._records = RecordReader(value_log)
        self._lock = threading.Lock()
        self._recent: OrderedDict[int, CommittedTransactions] = OrderedDict()
        self._absences = MissingPrewrites(value_log, index)
        self._reported: set[int] = set()
        self.missing_prewrites = 0

    # -- which transactions

    def transactions(
        self, after: int, through: int, entries: int = CHUNK_ENTRIES, *, keep: bool = True
    ) -> Iterator[CommittedTransactions]:
        """Yield the transactions with commit_ts in (after, through], chunk by chunk.

        A chunk has `entries` index entries. `through` must not be beyond max_commit_ts: below it
        nothing changes any more. `keep` caches the chunks for the next reader.
        """
        while after < through:
            with self._lock:
                chunk = self._recent.get(after)
                if chunk is not None:
                    self._recent.move_to_end(after)
            if chunk is None:
                chunk = self._chunk(after, through, entries)
                with self._lock:
                    if keep and chunk.whole:  # or the file may be restored: read again
                        self._recent[after] = chunk
                    while len(self._recent) > _MAX_CACHED_CHUNKS:
                        self._recent.popitem(last=False)
            elif chunk.through > through:
                chunk = chunk.until(through)
            if len(chunk.commits) or len(chunk.fakes) or not chunk.whole:
                yield chunk
            after = chunk.through

    def payloads(self, records: RecordHeads, which: Ints | None = None) -> list[bytes | None]:
        """Return payloads of what `transactions` yields, as RecordReader does."""
        return self._records.payloads(records, which)

    def clear_cache(self) -> None:
        """Drop the cached chunks, whose records have been purged."""
        with self._lock:
            self._recent.clear()

    def _chunk(self, after: int, through: int, entries: int) -> CommittedTransactions:
        # Each key follows from its record, so the index needs to give the pointers only, which
        # is twice as fast.
        fids, offsets = self._index.pointers(after, through, entries)
        records, places = self._records.read_heads(fids, offsets)
        in_order, starts = np.zeros(len(fids), np.int64), np.zeros(len(fids), np.int64)
        in_order[places], starts[places] = self._timestamps(records), records.starts
        bad: list[UnreadableRecord] = []
        if len(records) < len(fids) or not self._is_ascending(in_order, starts, after, through):
            indexed, fids, offsets = self._index.range(after, through, entries)
            records, places = self._records.read_heads(fids, offsets)
            at = indexed[places]
            differs = self._timestamps(records) != at
            for i in np.setdiff1d(np.arange(len(fids)), places).tolist():
                bad += [UnreadableRecord(int(indexed[i]), int(fids[i]), int(offsets[i]))]
            for i in np.flatnonzero(differs).tolist():
                bad.append(
                    UnreadableRecord(int(at[i]), int(records.fids[i]), int(records.offsets[i]))
                )
                self._log.report_corrupt(*bad[-1][1:], f"not the record of ts {bad[-1].ts}")
            records = records.select(~differs)
            in_order = indexed
        last = int(in_order[-1]) if len(fids) == entries else through
        if self._index.is_captured and len(fids) == entries:
            # Others of the last timestamp may lie behind it: they are read together.
            if in_order[0] == last:
                return self._chunk(after, through, 2 * entries)
            last = int(in_order[in_order < last][-1])
            records = records.select(records.commits <= last)
            bad = [each for each in bad if each.ts <= last]
        found = self._join(records, last)
        return replace(found, bad=(*bad, *found.bad)) if bad else found

    def _timestamps(self, records: RecordHeads) -> Ints:
        """Return the timestamp under which the index has each record."""
        if self._index.is_captured:
            return records.commits
        return np.where(records.tps == 0, records.starts, records.commits)

    def _is_ascending(self, timestamps: Ints, starts: Ints, after: int, through: int) -> bool:
        """Return whether records are those of (after, through], in the index's order."""
        if not len(timestamps):
            return True
        step = np.diff(timestamps)
        is_behind = step > 0
        if self._index.is_captured:
            is_behind |= (step == 0) & (np.diff(starts) > 0)
        return bool(timestamps[0] > after and timestamps[-1] <= through and is_behind.all())

    def _join(self, records: RecordHeads, through: int) -> CommittedTransactions:
        prewrites = records.tps == 0
        if self._index.is_captured:
            whole = by_commit(records.select(prewrites))
            return CommittedTransactions(
                whole, whole, by_commit(records.select(~prewrites)), through
            )
        fake = ~prewrites & (records.starts == records.commits)
        commit = (records.tps == COMMIT) & ~fake
        commits = by_commit(records.select(commit))
        fakes = by_commit(records.select(fake))
        candidates = records.select(prewrites)
        order = np.argsort(candidates.starts, kind="stable")
        candidates = candidates.select(order)
        at = np.searchsorted(candidates.starts, commits.starts)
        found = at < len(candidates)
        found[found] = candidates.starts[at[found]] == commits.starts[found]
        if not found.all():
            return self._join_older(commits, candidates, found, fakes, through)
        return CommittedTransactions(commits, candidates.select(at), fakes, through)

    def _join_older(
        self,
        commits: RecordHeads,
        candidates: RecordHeads,
        found: npt.NDArray[np.bool_],
        fakes: RecordHeads,
        through: int,
    ) -> CommittedTransactions:
        missing = np.flatnonzero(~found)
        pointers: dict[int, RecordPointer] = {}
        for start in commits.starts[missing].tolist():
            pointer = self._index.get(start)
            if pointer is not None:
                pointers[start] = pointer
        places = np.array(list(pointers.values()), np.int64).reshape(-1, 2)
        older, _ = self._records.read_heads(places[:, 0], places[:, 1])
        older = older.select(older.tps == 0)
        pool = candidates.joined(older)
        pool = pool.select(np.argsort(pool.starts, kind="stable"))
        at = np.searchsorted(pool.starts, commits.starts)
        found = at < len(pool)
        found[found] = pool.starts[at[found]] == commits.starts[found]
        bad, absent = [], []
        for i in np.flatnonzero(~found).tolist():
            commit_ts, start_ts = int(commits.commits[i]), int(commits.starts[i])
            self._miss(commit_ts, start_ts)
            place = pointers.get(start_ts)
            if place is None:
                absent.append(
                    (
                        commit_ts,
                        start_ts,
                        RecordPointer(int(commits.fids[i]), int(commits.offsets[i])),
                    )
                )
            else:
                bad.append(UnreadableRecord(commit_ts, *place))
        return CommittedTransactions(
            commits.select(found), pool.select(at[found]), fakes, through, tuple(bad), tuple(absent)
        )

    def _miss(self, commit_ts: int, start_ts: int) -> None:
        self.missing_prewrites += 1
        if commit_ts in self._reported:
            return
        if len(self._reported) < _MAX_REMEMBERED:
            self._reported.add(commit_ts)
        log.error(
            "no Prewrite of transaction %d in this pump, only its Commit %d: the transaction is"
            " excluded",
            start_ts,
            commit_ts,
        )

    def first_lost(self, chunk: CommittedTransactions) -> UnreadableRecord | None:
        """Return the first commit of a chunk that was wrongly excluded; None if there is none.

        It, or its Prewrite, can't be read. A transaction whose Prewrite never came here doesn't
        count, nor one that an operator has given up. Raises IndexDamagedError if the index lost an
        entry, CorruptRecordError if a Prewrite may have been purged.
        """
        return min(self._missing_in(chunk), default=None)

    def _count_lost(self, chunk: CommittedTransactions) -> int:
        try:
            return len(self._missing_in(chunk))
        except CorruptRecordError:
            return 1

    def _missing_in(self, chunk: CommittedTransactions) -> list[UnreadableRecord]:
        lost = [bad for bad in chunk.bad if not self._log.given_up(bad.fid, bad.offset)]
        for commit_ts, start_ts, commit in chunk.missing:
            place = self._absences.cause(start_ts, commit)
            if place is not None:
                lost.append(UnreadableRecord(commit_ts, *place))
        return lost

    def first_gap(self, after: int, through: int) -> UnreadableRange | None:
        """Return the first stretch of the value log that may hide a commit of (after, through].

        Raises IndexDamagedError if it is readable now: then its records must be indexed.
        """
        hiding = self._hiding(after, through)
        for gap in hiding:
            segment = self._log.segment(gap.fid)
            if segment is None:
                continue
            skipped: list[int] = []
            end = gap.begin + gap.size
            for _ in scan_segment(
                segment,
                gap.begin,
                end,
                lambda _, begin, __, skipped=skipped: skipped.append(begin),  # type: ignore[misc]
            ):
                pass
            if not skipped:
                self._index.report_damage(
                    f"{gap.size} bytes at offset {gap.begin} of {segment.path} were restored and"
                    " aren't in it"
                )
        return min(hiding, key=lambda gap: gap.low, default=None)

    def _hiding(self, after: int, through: int) -> list[UnreadableRange]:
        return [
            gap
            for gap in self._gaps()
            if gap.hides(after, through) and not self._log.given_up(gap.fid, gap.begin)
        ]

    def error_of(self, fid: int, offset: int) -> CorruptRecordError:
        """Return the error for a reader that must not miss the record there.

        The next reader checks the file again.
        """
        self._log.reopen_if_replaced(fid)
        return CorruptRecordError(
            str(self._log.path_of(fid)),
            offset,
            "a record of this window can't be read; restore the file from a copy, and reading"
            " resumes. Without a copy its transaction is lost downstream: repair its rows there,"
            f" then run `touch {self._log.lost_mark(fid, offset)}`",
        )

    def check_lost(self, records: RecordHeads, which: int) -> None:
        """Raise the error of an unreadable record, unless an operator has given it up."""
        fid, offset = int(records.fids[which]), int(records.offsets[which])
        if not self._log.given_up(fid, offset):
            raise self.error_of(fid, offset)

    def read(self, after: int, through: int, *, strict: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the transactions with commit_ts in (after, through] in WINDOW_SCHEMA, ascending.

        A batch has about BATCH_BYTES. Unreadable records are excluded, or with `strict` the first
        of them raises CorruptRecordError.
        """
        gap = self.first_gap(after, through) if strict else None
        if gap is not None:
            raise self.error_of(gap.fid, gap.begin)
        for chunk in self.transactions(after, through):
            if strict and not chunk.whole:
                lost = self.first_lost(chunk)
                if lost is not None:
                    raise self.error_of(lost.fid, lost.offset)
            for begin, end in groups(chunk.prewrites.lengths, BATCH_BYTES, BATCH_ROWS):
                batch = self._batch(chunk, begin, end, strict=strict)
                if batch.num_rows:
                    yield batch

    def _batch(
        self, chunk: CommittedTransactions, begin: int, end: int, *, strict: bool
    ) -> pa.RecordBatch:
        rows = slice(begin, end)
        commits, starts = chunk.commits.commits[rows], chunk.commits.starts[rows]
        lengths = chunk.prewrites.lengths[rows]
        joined = self._records.joined(chunk.prewrites.select(rows)) if kernel.IS_COMPILED else None
        if joined is None:
            payloads = self._records.payloads(chunk.prewrites, np.arange(begin, end))
            for i in [i for i, payload in enumerate(payloads) if payload is None] if strict else ():
                self.check_lost(chunk.prewrites, begin + i)
            if None in payloads:
                keep = np.array([p is not None for p in payloads])
                commits, starts, lengths = commits[keep], starts[keep], lengths[keep]
            joined = np.frombuffer(b"".join(p for p in payloads if p is not None), np.uint8)
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        column = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(joined)]
        )
        return pa.record_batch([_int64(commits), _int64(starts), column], schema=WINDOW_SCHEMA)

    def bounds(
        self, after: int, through: int, max_transactions: int, max_bytes: int
    ) -> WindowReach:
        """Return the largest end <= `through` within both limits behind `after`.

        It never ends between two transactions of one commit_ts; the first commit_ts always fits.
        The bytes are those of read()'s columns. Unreadable
        records, lost Prewrites and stretches that may hide a transaction count, so that a strict
        read of the range reports them. Raises IndexDamagedError as `first_lost`.
        """
        found = self._readable_bounds(after, through, max_transactions, max_bytes)
        return found._replace(transactions=found.transactions + len(self._hiding(after, found.hi)))

    def _readable_bounds(
        self, after: int, through: int, max_transactions: int, max_bytes: int
    ) -> WindowReach:
        count = size = 0
        last = after
        for chunk in self.transactions(
            after, through, min(CHUNK_ENTRIES, max(64, 2 * max_transactions + 64))
        ):
            sizes = np.cumsum(chunk.prewrites.lengths + 24) + size
            room = int(np.searchsorted(sizes, max_bytes, "right"))
            fits = min(room, max_transactions - count)
            if fits < len(sizes):
                fits = _between_timestamps(chunk.commits.commits, fits, is_first=count == 0)
                if fits == 0:
                    return WindowReach(last, count, size)
                return WindowReach(
                    int(chunk.commits.commits[fits - 1]), count + fits, int(sizes[fits - 1])
                )
            count += len(sizes) + (0 if chunk.whole else self._count_lost(chunk))
            size = int(sizes[-1]) if len(sizes) else size
            last = chunk.through
        return WindowReach(through, count, size)


def _int64(values: Ints) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _between_timestamps(commits: Ints, count: int, *, is_first: bool) -> int:
    """Return how many of ascending commits, at most `count`, end where another timestamp begins.

    If that is none and `is_first`, it is all that share the first timestamp.
    """
    count = int(np.searchsorted(commits, commits[count], "left"))
    return count or (int(np.searchsorted(commits, commits[0], "right")) if is_first else 0)
