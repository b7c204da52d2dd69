"""Merge committed transactions into the Binlogs that a Drainer pulls; pass on fake binlogs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sluice.pump_service.store import binlog_head
from sluice.pump_service.store.committed_transactions import CommittedTransactions, groups
from sluice.pump_service.store.record_reader import RecordHeads
from sluice.pump_service.store.records import MAX_TS, PulledBinlog
from sluice.pump_service.store.window_reader import WindowReader

_CHUNK_ENTRIES = 2048
_CHUNK_BYTES = 1 << 19
_AFTER_ALL_TS = MAX_TS + 1


def entities(reader: WindowReader, after: int, through: int) -> Iterator[PulledBinlog]:
    """Yield transactions and fake binlogs with commit_ts in (after, through], ascending.

    A transaction is its Commit with prewrite_value and ddl_* of its Prewrite; a fake is unchanged.
    At the first unreadable record it ends with CorruptRecordError, as the original's stream does:
    excluding it would lose it downstream.
    """
    gap = reader.first_gap(after, through)
    through = through if gap is None else max(after, gap.low)
    for chunk in reader.transactions(after, through, _CHUNK_ENTRIES, keep=False):
        lost = None if chunk.whole else reader.first_lost(chunk)
        yield from _chunk(reader, chunk if lost is None else chunk.until(lost.ts - 1))
        if lost is not None:
            raise reader.error_of(lost.fid, lost.offset)
    if gap is not None:
        raise reader.error_of(gap.fid, gap.begin)


def _chunk(reader: WindowReader, chunk: CommittedTransactions) -> Iterator[PulledBinlog]:
    fakes = _FakeBinlogs(reader, chunk.fakes)
    for begin, end in groups(chunk.prewrites.lengths, _CHUNK_BYTES, _CHUNK_ENTRIES):
        rows = np.arange(begin, end)
        commits, prewrites = (
            reader.payloads(chunk.commits, rows),
            reader.payloads(chunk.prewrites, rows),
        )
        starts, times = chunk.commits.starts[rows].tolist(), chunk.commits.commits[rows].tolist()
        for i, (commit, prewrite, start_ts, commit_ts) in enumerate(
            zip(commits, prewrites, starts, times, strict=True)
        ):
            if fakes.next_ts < commit_ts:
                yield from fakes.before(commit_ts)
            if commit is None or prewrite is None:
                reader.check_lost(chunk.commits if commit is None else chunk.prewrites, begin + i)
                continue
            yield PulledBinlog(binlog_head.merge(commit, prewrite), start_ts, commit_ts)
    yield from fakes.before(_AFTER_ALL_TS)


class _FakeBinlogs:
    """Yield a chunk's fake binlogs in order."""

    def __init__(self, reader: WindowReader, records: RecordHeads) -> None:
        self._reader, self._records = reader, records
        self._payloads = reader.payloads(records)
        self._times = [*records.commits.tolist(), _AFTER_ALL_TS]
        self._next = 0
        self.next_ts: int = self._times[0]

    def before(self, ts: int) -> Iterator[PulledBinlog]:
        while self.next_ts < ts:
            payload, at = self._payloads[self._next], self.next_ts
            if payload is None:
                self._reader.check_lost(self._records, self._next)
            self._next += 1
            self.next_ts = self._times[self._next]
            if payload is not None:
                yield PulledBinlog(payload, at, at)
