"""Find the timestamp through which every commit is known, from records in order of arrival.

TiDB asks for a commit timestamp only after the pump has acknowledged the Prewrite, and sends the
Commit after that. So of two transactions, the Prewrite of the one with the smaller commit_ts lies
before the Commit of the other. A Commit whose every earlier Prewrite has its outcome is therefore
preceded, in the index, by every smaller commit_ts.

The records form a queue in which a Prewrite without outcome holds up the records behind it. Between
two such Prewrites only the highest commit matters. So the queue is kept as a chain of the open
Prewrites, each with the highest commit (and the highest mark) that arrived behind it and before the
next one. Its size is the number of open transactions, however long the head waits.

What a pump captures from TiKV comes as whole transactions in groups of growing commit timestamps,
of which several may be equal. Nothing is ever open there. The fake binlog behind a group says that
the group is complete through its timestamp, and nothing else moves max_commit_ts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.pump_service.store.segment import RecordPointer
from sluice.tidb import tso
from sluice.tidb.binlog_kinds import PREWRITE

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]

LONG_TRANSACTION = tso.span(600_000)
"""600 s as a difference of TSOs."""

# A node of the chain is a list: the cheapest object per Prewrite.
_PREV, _NEXT, _START, _COMMIT, _FID, _OFFSET, _MARK, _BORN, _ASKED = range(9)


class SorterBatch(NamedTuple):
    """Hold durable records of one segment, without their payloads."""

    fid: int
    tps: Sequence[int]
    starts: Sequence[int]
    commits: Sequence[int]
    offsets: Sequence[int]


class Sorter:
    """Compute max_commit_ts. The indexer pushes records once they are indexed; any thread reads."""

    def __init__(
        self,
        max_commit_ts: int,
        handled: RecordPointer,
        long_transactions: dict[int, int] | None = None,
        *,
        is_captured: bool = False,
    ) -> None:
        """Begin at a saved position. `is_captured` if only fake binlogs move max_commit_ts."""
        self._is_captured = is_captured
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._waiters = 0
        self._is_closed = False
        self.on_wait: Callable[[], None] = lambda: None
        """Called by a thread that begins to wait."""
        self.on_late: Callable[[list[tuple[int, int]]], None] = lambda late: None
        """Called by the pushing thread with (start_ts, commit_ts) of a batch's late commits."""
        self._open: dict[int, list[Any]] = {}
        root: list[Any] = [None, None, 0, max_commit_ts, handled.fid, handled.offset, 0, 0.0, 0.0]
        root[_PREV] = root[_NEXT] = root
        self._root = root
        self._long = dict(long_transactions or {})
        self.late_commits = 0
        self.transactions = 0
        self.newest = max_commit_ts
        """Highest commit_ts that arrived; it may still wait for others."""
        self.passed = 0
        """A reader got everything through this timestamp without a mark; a commit that
        comes below is late.
        """

    @property
    def max_commit_ts(self) -> int:
        """Return the timestamp through which every commit is in the index."""
        root = self._root
        return int(max(root[_COMMIT], root[_MARK]))

    @property
    def is_awaited(self) -> bool:
        """Return whether a caller waits for it to advance."""
        return self._waiters > 0

    def handled(self) -> tuple[RecordPointer, int]:
        """Return record and timestamp of the highest commit that left the queue, for saving."""
        with self._lock:
            root = self._root
            return RecordPointer(root[_FID], root[_OFFSET]), root[_COMMIT]

    def push(
        self,
        batch: SorterBatch,
        *,
        replay: bool = False,
        known: Container[int] = (),
        begun: Container[int] = (),
    ) -> None:
        """Push records in their order in the value log.

        `replay` if an earlier run may have pushed them.

        `known` are commit timestamps that were indexed before these records, `begun` transactions
        whose Prewrite was.

        A Commit is late if its Prewrite is here but a higher timestamp has been published. That
        breaks TiDB's promise (a clock that went back), or contradicts an earlier outcome. Readers
        beyond it won't see it, so it is counted, logged, and passed to `on_late`. A known Commit is
        no late one but comes again: TiDB sent its Prewrite twice, so it was opened again behind its
        Commit. A Commit that came among these records already is no late one either.
        """
        fid, tps, starts, commits, offsets = batch
        if self._is_captured:
            self._push_captured(
                fid, *(np.array(column, np.int64) for column in (tps, starts, commits, offsets))
            )
            return
        waiting, root, now = self._open, self._root, time.monotonic()
        with self._lock:
            before = (root[_COMMIT], root[_MARK], self.newest)
            late = []
            for tp, start, commit, offset in zip(tps, starts, commits, offsets, strict=True):
                if tp == PREWRITE:
                    if start not in waiting:  # a Prewrite that came twice waits at its first place
                        last = root[_PREV]
                        node = [last, root, start, 0, 0, 0, 0, now, 0.0]
                        last[_NEXT] = root[_PREV] = waiting[start] = node
                    continue
                closed = None
                if start != commit:
                    closed = waiting.get(start)
                    if commit:
                        self.transactions += 1
                        if commit > self.newest:
                            self.newest = commit
                        if commit - start > LONG_TRANSACTION:
                            self._long[commit] = start
                        is_late = (
                            commit <= root[_COMMIT]
                            or commit <= root[_MARK]
                            or commit <= self.passed
                        )
                        if is_late and not replay and (closed is not None or start in begun):
                            late.append((start, commit))
                last = root[_PREV]
                if commit > last[_COMMIT]:
                    last[_COMMIT], last[_FID], last[_OFFSET] = commit, fid, offset
                # Readers look without the lock: a transaction counts as matched only when `newest`
                # and max_commit_ts have it.
                if closed is not None:
                    self._unlink(closed)
                    del waiting[start]
            if self._waiters and before != (root[_COMMIT], root[_MARK], self.newest):
                self._moved.notify_all()
        missed = []
        for start, commit in dict.fromkeys(late):
            times = sum(
                1 for of, ts in zip(starts, commits, strict=True) if (of, ts) == (start, commit)
            )
            # the first of these Commits wasn't late
            if commit in known or times > late.count((start, commit)):
                continue
            self.late_commits += 1
            missed.append((start, commit))
            log.error(
                "the commit %d of transaction %d came after a higher one was published: did PD's"
                " clock go back? Readers beyond it are stopped",
                commit,
                start,
            )
        if missed:
            self.on_late(missed)

    def push_arrays(self, fid: int, tps: Ints, starts: Ints, commits: Ints, offsets: Ints) -> None:
        """Push many records at once, as `push` does with `replay`.

        Nearly all have their Prewrite and outcome both among them; those only count with their
        highest commit.
        """
        if self._is_captured:
            self._push_captured(fid, tps, starts, commits, offsets)
            return
        closing = (tps != 0) & (starts != commits)
        rows = np.flatnonzero((tps == 0) | closing)
        rows = rows[np.argsort(starts[rows], kind="stable")]
        last = np.ones(len(rows), np.bool_)
        last[:-1] = starts[rows[1:]] != starts[rows[:-1]]
        lasts = rows[last]
        # A Prewrite stays open if no verdict follows it; those, and verdicts on older Prewrites, go
        # one by one.
        stays = starts[lasts[tps[lasts] == 0]]
        with self._lock:
            waiting = self._open
            single = np.zeros(len(tps), np.bool_)
            if len(stays):
                single[rows] = np.isin(starts[rows], stays)
            if waiting:
                single |= closing & np.fromiter(
                    map(waiting.__contains__, starts.tolist()), np.bool_, len(starts)
                )
            long = np.flatnonzero(closing & (commits - starts > LONG_TRANSACTION) & ~single)
            self._long.update(zip(commits[long].tolist(), starts[long].tolist(), strict=True))
            whole = commits[closing & (commits != 0) & ~single]
            self.transactions += len(whole)
            self.newest = max(self.newest, int(whole.max(initial=0)))
        cuts = np.flatnonzero(single).tolist()
        begin = 0
        for cut in [*cuts, len(tps)]:
            if cut > begin:
                top = begin + int(np.argmax(commits[begin:cut] * (tps[begin:cut] != 0)))
                if tps[top]:
                    self._advance(fid, int(commits[top]), int(offsets[top]))
            if cut < len(tps):
                one = slice(cut, cut + 1)
                columns = (tps[one], starts[one], commits[one], offsets[one])
                self.push(SorterBatch(fid, *(column.tolist() for column in columns)), replay=True)
            begin = cut + 1

    def _push_captured(
        self, fid: int, tps: Ints, starts: Ints, commits: Ints, offsets: Ints
    ) -> None:
        """Push whole transactions, and the fake binlogs behind groups of them."""
        fakes = np.flatnonzero(starts == commits)
        with self._lock:
            self.transactions += len(tps) - len(fakes)
            newest = int(commits.max(initial=0))
            if newest > self.newest:
                self.newest = newest
                if self._waiters:
                    self._moved.notify_all()
        if len(fakes):
            top = fakes[int(np.argmax(commits[fakes]))]
            self._advance(fid, int(commits[top]), int(offsets[top]))

    def _advance(self, fid: int, commit: int, offset: int) -> None:
        """Add a commit at the end of the queue."""
        with self._lock:
            last = self._root[_PREV]
            if commit > last[_COMMIT]:
                last[_COMMIT], last[_FID], last[_OFFSET] = commit, fid, offset
                if last is self._root and self._waiters:
                    self._moved.notify_all()

    @staticmethod
    def _unlink(node: list[Any]) -> None:
        before, after = node[_PREV], node[_NEXT]
        before[_NEXT], after[_PREV] = after, before
        if node[_COMMIT] > before[_COMMIT]:
            before[_COMMIT], before[_FID], before[_OFFSET] = (
                node[_COMMIT],
                node[_FID],
                node[_OFFSET],
            )
        if node[_MARK] > before[_MARK]:
            before[_MARK] = node[_MARK]
        node[_PREV] = node[_NEXT] = None

    def mark(self, ts: int) -> None:
        """Queue a mark: once all before it has its outcome, max_commit_ts is at least `ts`."""
        with self._lock:
            last = self._root[_PREV]
            if ts > last[_MARK]:
                last[_MARK] = ts
                if last is self._root and self._waiters:
                    self._moved.notify_all()

    def wait_for(self, ts: int, timeout_s: float) -> int:
        """Wait until max_commit_ts is at least `ts`, at most `timeout_s`; return max_commit_ts."""
        if self.max_commit_ts < ts and timeout_s > 0:
            self._wait(lambda: self.max_commit_ts >= ts or self._is_closed, timeout_s)
        return self.max_commit_ts

    def await_newer(self, ts: int, timeout_s: float) -> bool:
        """Return whether a commit above `ts` has come, waiting up to `timeout_s` for one."""
        if self.newest <= ts and timeout_s > 0:
            self._wait(lambda: self.newest > ts or self._is_closed, timeout_s)
        return self.newest > ts

    def _wait(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        with self._lock:
            self._waiters += 1
        try:
            self.on_wait()  # after that: from now on nothing more is held back
            with self._lock:
                self._moved.wait_for(is_over, timeout_s)
        finally:
            with self._lock:
                self._waiters -= 1

    def pass_at_rest(self, ts: int, newest: int | None = None) -> bool:
        """Return whether no Prewrite is open and, unless None, no commit is above `newest`.

        If so, the reader counts as past `ts` (0: it isn't): a commit that comes below is late.
        """
        with self._lock:
            if self._open or (newest is not None and self.newest > newest):
                return False
            self.passed = max(self.passed, ts)
            return True

    def close(self) -> None:
        """End all waits, and release the listeners and so the files that they hold."""
        with self._lock:
            self._is_closed = True
            self._moved.notify_all()
        self.on_wait = lambda: None
        self.on_late = lambda late: None

    def long_transactions(self) -> dict[int, int]:
        """Return commit_ts -> start_ts of transactions that took longer than LONG_TRANSACTION.

        Garbage collection must not judge their Prewrites by the Prewrites' own timestamps.
        """
        with self._lock:
            return dict(self._long)

    def drop_long(self, through: int) -> None:
        """Drop those committed at or before `through`."""
        with self._lock:
            self._long = {commit: start for commit, start in self._long.items() if commit > through}

    @property
    def open_count(self) -> int:
        """Return how many Prewrites have no outcome."""
        return len(self._open)

    def is_open(self, start_ts: int) -> bool:
        """Return whether that Prewrite waits for its outcome."""
        return start_ts in self._open

    def oldest_open(self) -> int:
        """Return the start_ts of the Prewrite at the head of the queue, 0 if none waits."""
        with self._lock:
            head = self._root[_NEXT]
            return 0 if head is self._root else int(head[_START])

    def smallest_open(self) -> int:
        """Return the smallest start_ts of all that wait, 0 if none waits."""
        with self._lock:
            return min(self._open, default=0)

    def unresolved(self, after_s: float, retry_s: float, limit: int) -> tuple[list[int], float]:
        """Return the start_ts of Prewrites to query, and in how many seconds the next one is due.

        They are those among the first `limit` of the queue that have waited `after_s` and were not
        queried for `retry_s`. They count as queried from now on.
        """
        now = time.monotonic()
        found: list[int] = []
        due = now + min(after_s, retry_s)  # one that comes now, or was found now
        with self._lock:
            node = self._root[_NEXT]
            seen = 0
            while node is not self._root and seen < limit:
                seen += 1
                at = max(node[_BORN] + after_s, node[_ASKED] + retry_s)
                if at <= now:
                    node[_ASKED] = now
                    found.append(node[_START])
                elif at < due:
                    due = at
                node = node[_NEXT]
            if node is not self._root:  # those behind weren't looked at
                due = now
        return found, due - now
