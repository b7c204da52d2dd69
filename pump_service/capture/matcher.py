"""Match the prewrites of one subscription with their commits.

A live commit carries no old value, and a value only if it is short: both are in the prewrite of the
same start_ts and key. Until the scan that begins a subscription has ended, a commit may come before
its prewrite, and a rollback as well. Such rows are kept aside until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from sluice.errors import SluiceError
from sluice.pump_service.capture import kernel
from sluice.pump_service.capture.run_files import DELETE, PUT, RunRecord
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
        "_commits", "_end", "_open", "_rollbacks", "_start", "_totals",
        "checkpoint_ts", "initialized", "resolved_ts",
    )  # fmt: skip

    def __init__(self, start: bytes, end: bytes, checkpoint_ts: int, totals: MatcherTotals) -> None:
        self._start, self._end = start, end
        self.checkpoint_ts = checkpoint_ts
        """Commits at or below it are not reported: the range had them before."""
        self.resolved_ts = checkpoint_ts
        self.initialized = False
        self._open: dict[int, dict[bytes, Prewrite]] = {}
        self._commits: list[pb.cdc.Event.Row] = []
        self._rollbacks: list[tuple[int, bytes]] = []
        self._totals = totals
        totals.matchers.add(self)

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
                self._commit(row, is_live=True)
            elif kind == _COMMITTED:
                if self._is_new(row):
                    change = KeyChange(key, row.value, row.old_value, row.op_type == _DELETE)
                    self._totals.sorter.add(row.commit_ts, row.start_ts, row.txn_source, change)
            elif kind == _ROLLBACK:
                if self.initialized:
                    self._roll_back(row.start_ts, key)
                else:
                    self._rollbacks.append((row.start_ts, key))

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

    def _commit(self, row: pb.cdc.Event.Row, *, is_live: bool) -> None:
        start_ts, key = row.start_ts, row.key
        of = self._open.get(start_ts)
        found = of.get(key) if of is not None else None
        # The scan may still bring a later generation.
        if (
            is_live
            and not self.initialized
            and (found is None or found.generation or found.change.is_delete)
        ):
            self._commits.append(row)
            return
        if found is not None:
            self._drop(start_ts, key)
            if self._is_new(row):
                self._totals.sorter.add(
                    row.commit_ts, start_ts, found.source or row.txn_source, found.change
                )
        elif start_ts in self._totals.sorter.prewrites:
            if self._is_new(row):
                self._totals.sorter.expect(row.commit_ts, start_ts, key, is_certain=is_live)
        elif is_live and self._is_new(row):
            raise UnmatchedCommitError(
                f"the commit of key {key.hex()} by transaction {start_ts} has no prewrite"
            )

    def _is_new(self, row: pb.cdc.Event.Row) -> bool:
        if row.commit_ts > self.resolved_ts:
            return True
        if row.commit_ts > self.checkpoint_ts:
            raise LateChangeError(
                f"TiKV sent a change of key {row.key.hex()} with commit ts {row.commit_ts} after"
                f" its resolved ts {self.resolved_ts}"
            )
        return False

    def _initialize(self) -> None:
        self.initialized = True
        commits, self._commits = self._commits, []
        rollbacks, self._rollbacks = self._rollbacks, []
        for row in commits:  # one without a prewrite has come as COMMITTED
            self._commit(row, is_live=False)
        for start_ts, key in rollbacks:
            self._roll_back(start_ts, key)

    def _roll_back(self, start_ts: int, key: bytes) -> None:
        if not self._drop(start_ts, key):
            with self._totals.sorter.lock:
                self._totals.sorter.prewrites.roll_back(start_ts)

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
        self._commits.clear()
        self._rollbacks.clear()
        self._totals.matchers.discard(self)


class MatcherTotals:
    """Count the open prewrites of all subscriptions, and spill the largest transactions."""

    def __init__(self, sorter: CommitSorter, memory_bytes: int) -> None:
        self.sorter = sorter
        self._memory_bytes = memory_bytes
        self.matchers: set[Matcher] = set()
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

    @property
    def is_full(self) -> bool:
        """Return whether memory exceeds the limit."""
        return self.bytes > self._memory_bytes

    def relieve(self) -> None:
        """Move the largest transactions to disk until half of the limit is free. Raises OSError."""
        if not self.is_full:
            return
        chosen, left = set(), self.bytes
        for start_ts in sorted(self._by_start, key=self._by_start.__getitem__, reverse=True):
            chosen.add(start_ts)
            left -= self._by_start[start_ts]
            if left <= self._memory_bytes // 2:
                break
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
