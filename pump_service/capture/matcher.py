"""Match the prewrites of one subscription with their commits.

A live commit carries no old value, and a value only if it is short: both are in the prewrite of the
same start_ts and key. Until the scan that begins a subscription has ended, a commit may come before
its prewrite, and a rollback as well. Such rows are kept aside until then, beyond the limit of
memory in a file.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from sluice.errors import SluiceError
from sluice.pump_service.capture import kernel
from sluice.pump_service.capture.run_files import (
    DELETE,
    POSSIBLE,
    PUT,
    RunRecord,
    read_records,
    write_records,
)
from sluice.pump_service.capture.sorter import CHANGE_OVERHEAD_BYTES, CommitSorter, LateChangeError
from sluice.pump_service.capture.transactions import KeyChange
from sluice.tidb import pb

_Row = pb.cdc.Event.Row
_PREWRITE, _COMMIT, _ROLLBACK = pb.cdc.Event.PREWRITE, pb.cdc.Event.COMMIT, pb.cdc.Event.ROLLBACK
_COMMITTED, _INITIALIZED = pb.cdc.Event.COMMITTED, pb.cdc.Event.INITIALIZED
_DELETE = _Row.DELETE
_INDEX_AT, _INDEX = slice(9, 11), b"_i"
"""Where a key of a table has its kind: `t`, eight bytes of table id, and `_r` or `_i`."""


class UnmatchedCommitError(SluiceError):
    """Report a commit whose prewrite this subscription never got."""

    transient = True
    hint = "nothing to do: the region is subscribed again from its last resolved timestamp"


class Prewrite(NamedTuple):
    """Hold the values of a key that a transaction has locked."""

    change: KeyChange
    source: int
    generation: int


_TYPES = (KeyChange, Prewrite)


class Matcher:
    """Hold the open prewrites of one subscription, by start_ts and key."""

    __slots__ = (
        "_end", "_kept", "_kept_file", "_open", "_start", "_totals",
        "checkpoint_ts", "initialized", "kept_bytes", "resolved_ts",
    )  # fmt: skip

    def __init__(self, start: bytes, end: bytes, checkpoint_ts: int, totals: MatcherTotals) -> None:
        self._start, self._end = start, end
        self.checkpoint_ts = checkpoint_ts
        """Commits at or below it are not reported: the range had them before."""
        self.resolved_ts = checkpoint_ts
        self.initialized = False
        self._open: dict[int, dict[bytes, Prewrite]] = {}
        self._kept: list[RunRecord] = []  # of a rollback without a commit_ts
        self._kept_file: Path | None = None
        self.kept_bytes = 0
        """Memory of the commits and rollbacks that wait for the end of the scan, an estimate."""
        self._totals = totals
        totals.matchers.add(self)
        totals.scans += 1

    def take_in(self, entries: pb.cdc.Event.Entries) -> None:
        """Take the rows of an event in order, in compiled code as far as it knows them.

        Raises as `apply` does.
        """
        rows = entries.entries
        at, data, totals = 0, b"", self._totals
        while at < len(rows):
            if self.initialized and kernel.IS_COMPILED:
                data = data or entries.SerializeToString()
                at, counts, commits = kernel.match(
                    data, at, (self._start, self._end), self.resolved_ts, self._open, _TYPES
                )
                for start_ts, count, size in counts:
                    totals.count(start_ts, count, size + count * CHANGE_OVERHEAD_BYTES)
                for commit_ts, start_ts, source, changes in commits:
                    totals.sorter.add_all(commit_ts, start_ts, source, changes)
            if at < len(rows):
                self.apply(rows[at : at + 1])
                at += 1

    def apply(self, rows: Iterable[pb.cdc.Event.Row]) -> None:
        """Take rows in order.

        Raises UnmatchedCommitError, after which the subscription has to begin again, and
        LateChangeError if TiKV broke its promise of a resolved ts.
        """
        for row in rows:
            kind, key = row.type, row.key
            if kind == _INITIALIZED:
                self._initialize()
            elif not self._start <= key < self._end or (
                key[_INDEX_AT] == _INDEX and key[:1] == b"t"
            ):
                # TiKV before 7.1 sends the whole region; what an index holds is in the row, too
                continue
            elif kind == _PREWRITE:
                self._prewrite(row)
            elif kind == _COMMIT:
                self._commit(row.commit_ts, row.start_ts, key, row.txn_source, is_live=True)
            elif kind == _COMMITTED:
                if self._is_new(row.commit_ts, key):
                    change = KeyChange(key, row.value, row.old_value, row.op_type == _DELETE)
                    self._totals.sorter.add(row.commit_ts, row.start_ts, row.txn_source, change)
            elif kind == _ROLLBACK:
                if self.initialized:
                    self._roll_back(row.start_ts, key)
                else:
                    self._keep(0, row.start_ts, key, 0)

    def _prewrite(self, row: pb.cdc.Event.Row) -> None:
        value, is_delete = row.value, row.op_type == _DELETE
        if not value and not is_delete:
            return  # a lock that was rewritten, without the value that came before
        of = self._open.get(row.start_ts)
        if of is None:
            of = self._open[row.start_ts] = {}
        former = of.get(row.key)
        if former is not None:
            if former.generation > row.generation:
                return
            self._totals.count(row.start_ts, -1, -_size(former.change))
        found = Prewrite(
            KeyChange(row.key, value, row.old_value, is_delete), row.txn_source, row.generation
        )
        of[row.key] = found
        self._totals.count(row.start_ts, 1, _size(found.change))

    def _commit(
        self, commit_ts: int, start_ts: int, key: bytes, source: int, *, is_live: bool
    ) -> None:
        of = self._open.get(start_ts)
        found = of.get(key) if of is not None else None
        # The scan may still bring a later generation.
        if (
            is_live
            and not self.initialized
            and (found is None or found.generation or found.change.is_delete)
        ):
            self._keep(commit_ts, start_ts, key, source)
            return
        if found is not None:
            self._drop(start_ts, key)
            if self._is_new(commit_ts, key):
                self._totals.sorter.add(commit_ts, start_ts, found.source or source, found.change)
        elif start_ts in self._totals.sorter.prewrites:
            if self._is_new(commit_ts, key):
                self._totals.sorter.expect(commit_ts, start_ts, key, is_certain=is_live)
        elif is_live and self._is_new(commit_ts, key):
            raise UnmatchedCommitError(
                f"the commit of key {key.hex()} by transaction {start_ts} has no prewrite"
            )

    def _is_new(self, commit_ts: int, key: bytes) -> bool:
        if commit_ts > self.resolved_ts:
            return True
        if commit_ts > self.checkpoint_ts:
            raise LateChangeError(
                f"TiKV sent a change of key {key.hex()} with commit ts {commit_ts} after"
                f" its resolved ts {self.resolved_ts}"
            )
        return False

    def _keep(self, commit_ts: int, start_ts: int, key: bytes, source: int) -> None:
        self._kept.append(RunRecord(commit_ts, start_ts, key, POSSIBLE, source, b"", b""))
        size = len(key) + CHANGE_OVERHEAD_BYTES
        self.kept_bytes += size
        self._totals.bytes += size

    def spill_kept(self) -> None:
        """Move what waits for the end of the scan to the end of a file. Raises OSError."""
        if self._kept_file is None:
            self._kept_file = self._totals.sorter.folder.new()
        write_records(self._kept_file, self._kept)
        self._clear_kept()

    def _clear_kept(self) -> None:
        self._totals.bytes -= self.kept_bytes
        self._kept, self.kept_bytes = [], 0

    def _read_kept(self) -> Iterator[RunRecord]:
        if self._kept_file is not None:
            yield from read_records(self._kept_file, 0, self._kept_file.stat().st_size)
        yield from self._kept

    def _forget_kept(self) -> None:
        self._clear_kept()
        if self._kept_file is not None:
            self._kept_file.unlink(missing_ok=True)
            self._kept_file = None

    def _initialize(self) -> None:
        self.initialized = True
        for commit_ts, start_ts, key, _, source, _, _ in self._read_kept():
            if commit_ts:  # one without a prewrite has come as COMMITTED
                self._commit(commit_ts, start_ts, key, source, is_live=False)
                self._totals.sorter.relieve()  # a single message may bring millions
        # A rollback may give spilled prewrites up whose other keys have been committed.
        for commit_ts, start_ts, key, *_ in self._read_kept():
            if not commit_ts:
                self._roll_back(start_ts, key)
        self._forget_kept()
        self._totals.end_scan()

    def _roll_back(self, start_ts: int, key: bytes) -> None:
        if not self._drop(start_ts, key):
            self._totals.roll_back(start_ts)

    def _drop(self, start_ts: int, key: bytes) -> bool:
        """Forget a prewrite; return whether it was in memory."""
        of = self._open.get(start_ts)
        found = None if of is None else of.pop(key, None)
        if of is None or found is None:
            return False
        self._totals.count(start_ts, -1, -_size(found.change))
        if not of:
            del self._open[start_ts]
        return True

    def take(self, start_ts: int) -> Iterable[RunRecord]:
        """Take out the prewrites of one transaction, sorted by key, for a file."""
        of = self._open.pop(start_ts, {})
        for key in sorted(of):
            change, source, generation = of[key]
            self._totals.count(start_ts, -1, -_size(change))
            kind = DELETE if change.is_delete else PUT
            yield RunRecord(generation, start_ts, key, kind, source, change.value, change.old_value)

    def open_transactions(self) -> Iterable[int]:
        """Return the start_ts of transactions with prewrites in memory."""
        return self._open.keys()

    def close(self) -> None:
        """Forget everything: the subscription has ended."""
        for start_ts, of in self._open.items():
            self._totals.count(start_ts, -len(of), -sum(_size(each.change) for each in of.values()))
        self._open.clear()
        self._forget_kept()
        if self in self._totals.matchers and not self.initialized:
            self._totals.end_scan()
        self._totals.matchers.discard(self)


class MatcherTotals:
    """Count what all subscriptions hold, and move the largest parts of it to disk."""

    def __init__(self, sorter: CommitSorter, memory_bytes: int) -> None:
        self.sorter = sorter
        self._memory_bytes = memory_bytes
        self.matchers: set[Matcher] = set()
        self.scans = 0
        """How many of them wait for the end of the scan that begins a subscription."""
        self._rolled_back = Counter[int]()
        self.prewrites = 0
        self.bytes = 0
        self._by_start: dict[int, int] = {}

    def count(self, start_ts: int, prewrites: int, size: int) -> None:
        """Change the totals of a transaction."""
        self.prewrites += prewrites
        self.bytes += size
        left = self._by_start.get(start_ts, 0) + size
        if left:
            self._by_start[start_ts] = left
        else:
            self._by_start.pop(start_ts, None)

    def roll_back(self, start_ts: int) -> None:
        """Count the rollback of a key of spilled prewrites, once no scan is under way.

        They may be given up too early, see `PrewriteFiles.roll_back`. A live commit would notice
        it. One that waits for the end of a scan wouldn't: it would be taken for one that the scan
        brought.
        """
        if start_ts in self.sorter.prewrites:
            self._rolled_back[start_ts] += 1
            self._count_rollbacks()

    def end_scan(self) -> None:
        """Count what was rolled back meanwhile, if it was the last scan under way."""
        self.scans -= 1
        self._count_rollbacks()

    def _count_rollbacks(self) -> None:
        if self.scans:
            return
        with self.sorter.lock:
            for start_ts, count in self._rolled_back.items():
                self.sorter.prewrites.roll_back(start_ts, count)
        self._rolled_back.clear()

    @property
    def is_full(self) -> bool:
        """Return whether memory exceeds the limit."""
        return self.bytes > self._memory_bytes

    def relieve(self) -> None:
        """Move what is largest to disk until half of the limit is free. Raises OSError.

        Moved are open transactions, and commits that wait for the end of a scan.
        """
        if not self.is_full:
            return
        found: list[tuple[int, int | Matcher]] = [
            (size, start_ts) for start_ts, size in self._by_start.items()
        ]
        found += [(matcher.kept_bytes, matcher) for matcher in self.matchers if matcher.kept_bytes]
        chosen, left = set(), self.bytes
        for size, each in sorted(found, key=itemgetter(0), reverse=True):
            if isinstance(each, Matcher):
                each.spill_kept()
            else:
                chosen.add(each)
            left -= size
            if left <= self._memory_bytes // 2:
                break
        if not chosen:
            return
        holders: dict[int, list[Matcher]] = {start_ts: [] for start_ts in sorted(chosen)}
        for matcher in self.matchers:
            for start_ts in chosen.intersection(matcher.open_transactions()):
                holders[start_ts].append(matcher)
        with self.sorter.lock:
            self.sorter.prewrites.add(
                (
                    start_ts,
                    heapq.merge(
                        *(matcher.take(start_ts) for matcher in of),
                        key=lambda record: record.key,
                    ),
                )
                for start_ts, of in holders.items()
            )


def _size(change: KeyChange) -> int:
    return len(change.key) + len(change.value) + len(change.old_value) + CHANGE_OVERHEAD_BYTES
