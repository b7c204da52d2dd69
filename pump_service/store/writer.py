"""Append to the value log in one thread at a time: group commit.

A thread takes everything that is queued, writes it, syncs once, answers, and only then hands the
records to the indexer. A caller that is alone may do the same with its own. Records that no caller
waits for may be held back, and are written with those behind them. A failed write or fsync ends
writing for good: it is unknown what is on disk, and a second fsync that succeeds would prove
nothing. Only a full disk doesn't: what didn't fit is rejected, and the next write may fit.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.pump_service.store import failpoints
from sluice.pump_service.store.errors import (
    NoDescriptorsError,
    NoSpaceError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
)
from sluice.pump_service.store.indexer import Indexer
from sluice.pump_service.store.records import Record
from sluice.pump_service.store.segment import DiskFullError
from sluice.pump_service.store.sorter import SorterBatch
from sluice.pump_service.store.value_log import ValueLog, WriteMetrics

log = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]

_MAX_GROUP_BYTES = 4 << 20
_QUICK_S, _DISTRUST_S, _LONGER, _DISTRUST_AT_MOST_S = 0.05, 1.0, 20, 60.0
"""A disk that took longer once isn't waited for in a caller's thread for so long, or so many times
as long.
"""
_PROMPT_S = 0.002
"""Records are held back only if the last write was no slower: a reader would wait for the disk."""
_MAX_HELD_RECORDS, _MAX_HELD_BYTES = 64, 256 << 10
_REPORT_INTERVAL_S = 30.0


class _Submission(NamedTuple):
    records: Sequence[Record]
    size: int
    done: Done | None
    mark: int
    began: float
    fence: threading.Event | None = None


class Writer:
    """Write records. `submit` and `mark` are thread-safe; the value log belongs to this thread."""

    def __init__(
        self,
        value_log: ValueLog,
        indexer: Indexer,
        slow_write_s: float,
        stop_at: int,
        timings: WriteMetrics,
    ) -> None:
        """Create it; `stop_at` (bytes of free space that stop writes) is only named in errors."""
        self._log, self._indexer, self._slow_write, self._stop_at = (
            value_log,
            indexer,
            slow_write_s,
            stop_at,
        )
        self._timings = timings
        self._refused_at = -_REPORT_INTERVAL_S
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting = False
        self._writing = False  # the writer's thread writes
        self._elsewhere = False  # a caller of `submit` writes
        self._distrusted_until = 0.0
        self._took = 0.0
        self._queue: deque[_Submission] = deque()
        self._held: list[_Submission] = []
        self.queued_bytes = 0
        self._closing = False
        self.failure: StoreFailedError | None = None
        self.records = self.bytes = self.batches = 0
        self.write_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="pump-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Return whether everything submitted has reached the indexer or was rejected."""
        with self._lock:
            return not (self._queue or self._held or self._writing or self._elsewhere)

    def submit(
        self,
        records: Sequence[Record],
        size: int,
        done: Done,
        *,
        here: bool = False,
        later: bool = False,
    ) -> None:
        """Queue records of `size` payload bytes.

        The writer thread calls `done`, or this call if it ended.

        With `here` the caller has nothing else to do. If the writer is idle too and the disk was
        quick lately, they are written in this thread, which calls `done`: no thread need be woken.

        With `later` no client waits for them. If no reader waits either, they may be held back
        until others are submitted, a mark or fence comes behind them, or `flush`, which the caller
        ensures. `done` is called from there.
        """
        began = time.monotonic()
        submission = _Submission(records, size, done, 0, began)
        with self._lock:
            refusal = self._refusal()
            if refusal is None:
                self.queued_bytes += size
                if later and self._may_hold(size):
                    self._held.append(submission)
                    return
                if not here or not self._is_free(began):
                    self._enqueue(submission)
                    return
                taken = self._take_held(submission)
        if refusal is not None:
            done(refusal)
            return
        self._write_here(taken)

    def mark(self, ts: int) -> None:
        """Send a mark behind everything submitted; touches the disk only if records were held back.

        After a failed write it still goes behind everything that was acknowledged. That suffices:
        nothing else may commit.
        """
        taken: list[_Submission] = []
        with self._lock:
            if self.failure is None:
                if self._closing:
                    raise StoreClosedError("the store is closed")
                # nothing is held: the disk doesn't matter
                now = time.monotonic() if self._held else float("inf")
                if not self._is_free(now):
                    self._enqueue(_Submission((), 0, None, ts, 0.0))
                    return
                if self._held:
                    taken = self._take_held()
        if taken:
            self._write_here(taken)
        # Nothing is queued or being written: what was acknowledged is with the indexer already.
        self._indexer.mark(ts, here=True)

    def fence(self, passed: threading.Event) -> None:
        """Send the indexer's fence behind everything submitted so far."""
        with self._lock:
            if self.failure is None and not self._closing:
                self._enqueue(_Submission((), 0, None, 0, 0.0, passed))
                return
        self._indexer.fence(passed)

    def flush(self) -> None:
        """Write what is held back, in this thread where `submit` would."""
        with self._lock:  # without the lock, a record about to be held back would be missed
            if not self._held:
                return
            if not self._is_free(time.monotonic()):
                self._enqueue()
                return
            taken = self._take_held()
        self._write_here(taken)

    def _is_free(self, now: float) -> bool:
        """Return, with the lock held, whether a thread other than the writer's may write."""
        return (
            self._waiting
            and not self._queue
            and not self._elsewhere
            and now >= self._distrusted_until
        )

    def _may_hold(self, size: int) -> bool:
        """Return, with the lock held, whether records that no client waits for may be held back."""
        is_little = len(self._held) < _MAX_HELD_RECORDS and size <= _MAX_HELD_BYTES
        return (
            is_little
            and self._took <= _PROMPT_S
            and self._is_free(float("inf"))
            and not self._indexer.is_awaited
        )

    def _enqueue(self, *submissions: _Submission) -> None:
        """Queue submissions behind what is held back, with the lock held."""
        self._queue += self._held
        self._queue += submissions
        self._held = []
        if self._waiting:
            self._work.notify()

    def _take_held(self, *submissions: _Submission) -> list[_Submission]:
        """Return what is held back and these for writing in this thread, with the lock held."""
        taken, self._held = [*self._held, *submissions], []
        self.queued_bytes -= sum(submission.size for submission in taken)
        self._elsewhere = True
        return taken

    def _write_here(self, taken: list[_Submission]) -> None:
        self._write_or_fail(taken, sum(submission.size for submission in taken))
        with self._lock:
            self._elsewhere = False
            if self._queue or self._closing:
                self._work.notify()

    def _refusal(self) -> StoreFailedError | StoreClosedError | None:
        if self.failure is not None:
            return self.failure
        return (
            StoreClosedError("the store is closed: nothing is accepted any more")
            if self._closing
            else None
        )

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        with self._lock:
            self._closing = True
            self._enqueue()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._elsewhere or (not self._queue and not self._closing):
                    self._waiting = True
                    self._work.wait()
                    self._waiting = False
                if not self._queue:
                    return
                taken, size = [], 0
                while self._queue and size <= _MAX_GROUP_BYTES:
                    submission = self._queue.popleft()
                    taken.append(submission)
                    size += submission.size
                self.queued_bytes -= size
                self._writing = True
            self._write_or_fail(taken, size)
            self._writing = False
            if self.failure is not None:
                return

    def _write_or_fail(self, taken: list[_Submission], size: int) -> None:
        try:
            try:
                self._write(taken, size)
            except DiskFullError as error:
                self._refuse(error, taken)
        except BaseException as error:  # whatever it was, the records must not be acknowledged
            self._fail(error, taken)

    def _write(self, taken: list[_Submission], size: int) -> None:
        records = taken[0].records if len(taken) == 1 else [r for s in taken for r in s.records]
        batches: list[SorterBatch] = []
        if records:
            tps, starts, commits, payloads = zip(*records, strict=True)
            timestamps = [
                c if tp or c else s for tp, s, c in zip(tps, starts, commits, strict=True)
            ]
            began = time.monotonic()
            failpoints.hit("writer.before_write")
            for run in self._log.append(payloads, timestamps):
                part = slice(run.first, run.first + len(run.offsets))
                batches.append(
                    SorterBatch(run.fid, tps[part], starts[part], commits[part], run.offsets)
                )
            now = time.monotonic()
            took = self._took = now - began
            # also in the writer's thread, which finds out when the disk is quick again
            if took > _QUICK_S:
                self._distrusted_until = now + min(
                    max(_DISTRUST_S, _LONGER * took), _DISTRUST_AT_MOST_S
                )
            timings = self._timings
            timings.batch.observe(took)
            timings.batch_size.observe(size)
            timings.single_size.observe_all(map(len, payloads))
            for submission in taken:
                timings.single.observe(now - submission.began, len(submission.records))
            self.write_seconds += took
            self.batches += 1
            self.records += len(records)
            self.bytes += size
            if took >= self._slow_write:
                log.warning(
                    "writing %d records (%d bytes) to the value log took %.1f s",
                    len(records),
                    size,
                    took,
                )
        mark = max((s.mark for s in taken), default=0)
        fences = [s.fence for s in taken if s.fence is not None]
        for submission in taken:
            if submission.done is not None:
                _call(submission.done, None)
        taken.clear()  # all of them are answered, whatever fails below
        if batches:
            failpoints.hit("writer.after_ack")
            self._indexer.offer(batches, self._log.end)
        if mark:
            self._indexer.mark(mark)
        for fence in fences:
            self._indexer.fence(fence)
        self._log.rotate_if_full()

    def _refuse(self, error: DiskFullError, taken: list[_Submission]) -> None:
        # Unlike after a failed fsync it is known what is on disk: writing resumes once there is
        # room.
        refusal: StoreError
        if error.errno in (errno.EMFILE, errno.ENFILE):
            refusal = NoDescriptorsError()
        else:
            refusal = NoSpaceError(_available(Path(error.filename).parent), self._stop_at)
        if time.monotonic() - self._refused_at > _REPORT_INTERVAL_S:
            self._refused_at = time.monotonic()
            log.error(
                "%s: writes are rejected until there is room: %s", error.filename, error.strerror
            )
        for submission in taken:
            if submission.done is not None:
                _call(submission.done, refusal)
            elif submission.fence is not None:
                self._indexer.fence(submission.fence)
            elif submission.mark:
                self._indexer.mark(submission.mark)

    def _fail(self, error: BaseException, taken: list[_Submission]) -> None:
        failure = StoreFailedError(
            "writing the value log failed, the store accepts nothing until the pump is started"
            f" again: {error}"
        )
        failure.__cause__ = error
        log.critical("%s", failure)
        with self._lock:
            self.failure = failure
            rest = [*taken, *self._queue, *self._held]
            self._queue.clear()
            self._held = []
            self.queued_bytes = 0
        for submission in rest:
            if submission.done is not None:
                _call(submission.done, failure)


def _available(path: Path) -> int:
    """Return bytes of free space; 0 if unknown. Only error texts use it."""
    try:
        figures = os.statvfs(path)
    except OSError:
        return 0
    return figures.f_bavail * figures.f_frsize


def _call(done: Done, error: BaseException | None) -> None:
    try:
        done(error)
    except Exception:
        log.exception("a caller's done callback failed")
