"""Enter acknowledged records into the index, then push them to the sorter.

A bounded queue leads from the writer to the indexer's thread. When LevelDB stalls and the queue is
full, the writer stops queueing and continues. The indexer then reads the missed records from the
value log, in order (the original's slow chaser). Within `_NEAR_END_BYTES` bytes of the end the
writer queues again and the indexer reads only up to where that began, so the writer never waits.
Recovery at start is the same: catching up from the smaller of the saved pointers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import numpy as np

from sluice.pump_service.store.errors import StoreError
from sluice.pump_service.store.index import BinlogIndex
from sluice.pump_service.store.index_feed import IndexerOptions, IndexFeed
from sluice.pump_service.store.segment import RecordPointer
from sluice.pump_service.store.sorter import Sorter, SorterBatch
from sluice.pump_service.store.value_log import ValueLog
from sluice.tidb import tso

log = logging.getLogger(__name__)

_NEAR_END_BYTES = 16 << 20
_GROUP_RECORDS = 4096
_GATHER_WAIT_S = 0.001
"""Records that come within this after the last ones are indexed together."""
_MAX_LINGER_S, _MAX_LINGERING_RECORDS = 0.5, 16
"""How long, and up to how many, records may wait if no caller waits for them.

Indexed one by one, each would cost a wake-up.
"""
_RETRY_INTERVAL_S = 1.0
_MAX_CLOCK_SKEW = tso.span(60_000)


class Indexer(IndexFeed):
    """Index records. The writer calls `offer` and `mark`, in order.

    The rest runs in the indexer's own thread, or in that of a caller that waits for a mark while it
    rests.
    """

    def __init__(
        self,
        value_log: ValueLog,
        index: BinlogIndex,
        sorter: Sorter,
        options: IndexerOptions,
        begin: RecordPointer,
    ) -> None:
        super().__init__(value_log, index, sorter, options, begin)
        self._capacity = options.capacity
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queue: deque[SorterBatch | int | threading.Event] = deque()
        self._queued = 0
        self._end = value_log.end
        self._behind: RecordPointer | None = begin if begin < self._end else None
        self._late_marks: list[int] = []
        self._marks_in_hand: list[int] = []  # dequeued and not yet pushed
        self._stepped_at = 0.0
        self._is_wanted = False
        self._is_resting = False
        """The thread waits, and has nothing in hand."""
        self._elsewhere = False
        """Whoever sent a mark indexes in its own thread."""
        self._failure: Exception | None = None
        """The failure there. Until the thread has started over no mark may pass what was lost
        with it.
        """
        self._stop = False
        self._stopping = threading.Event()
        self._idle = self._behind is None
        self._replay = not self._idle
        self._caught_up = threading.Event()
        if self._idle:
            index.set_complete(complete=True)
            self._caught_up.set()
        self.slow_count = 0
        # of the slow mode, not of the replay at start
        self.slow_ends = self.catch_ups = self.recoveries = 0
        self.errors = 0
        self._thread = threading.Thread(target=self._run, name="pump-indexer", daemon=True)
        index.on_damage = self._wake

    def hurry(self) -> None:
        """Wake the thread: a caller waits for what was offered."""
        if self._queue:
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            self._is_wanted = True
            self._work.notify()

    def start(self) -> None:
        self._thread.start()

    # -- called by the writer

    def offer(self, batches: list[SorterBatch], end: RecordPointer) -> None:
        """Queue durable records; `end` is the value log's end behind them. Never waits."""
        with self._lock:
            self._end = end
            if self._behind is not None:
                return
            count = sum(len(b.offsets) for b in batches)
            if self._queued and self._queued + count > self._capacity:
                self._behind = RecordPointer(batches[0].fid, batches[0].offsets[0])
                self._caught_up.clear()
                self.slow_count += 1
                log.warning(
                    "indexing is %d records behind: catching up from the value log at %s",
                    self._queued,
                    self._behind,
                )
                return
            self._queue.extend(batches)
            self._queued += count
            if self._is_due():
                self._work.notify()

    def mark(self, ts: int, *, here: bool = False) -> None:
        """Queue a mark behind everything offered so far.

        With `here` the caller waits for it: what lies before it may be indexed in the caller's
        thread, which saves waking another one.
        """
        with self._lock:
            if self._behind is not None:
                self._late_marks.append(ts)
                return
            self._queue.append(ts)
            is_free = self._is_resting and not self._elsewhere and self._failure is None
            if not (here and is_free and self._queued <= _MAX_LINGERING_RECORDS):
                self._is_wanted = True
                self._work.notify()
                return
            self._elsewhere = True
            taken, count = self._next()
        self._index_here(taken, count)

    def _index_here(self, taken: list[SorterBatch | int | threading.Event], count: int) -> None:
        failure: Exception | None = None
        try:
            self._take(taken)
        except Exception as error:  # the indexer's thread starts over from what is in the index
            failure = error
        with self._lock:
            self._elsewhere, self._failure = False, failure
            if failure is None:
                self._queued -= count
                self._marks_in_hand = []
            if self._is_due():
                self._work.notify()

    def fence(self, passed: threading.Event) -> None:
        """Set `passed` once everything offered so far is indexed and pushed to the sorter.

        Never sets it while records are being read back from the value log.
        """
        with self._lock:
            if self._behind is None:
                self._queue.append(passed)
                self._is_wanted = True
                self._work.notify()

    # -- called from any thread

    @property
    def is_awaited(self) -> bool:
        """Return whether a caller waits for new records."""
        return self._sorter.is_awaited

    @property
    def queued(self) -> int:
        """Return how many records wait in memory."""
        return self._queued

    @property
    def applied(self) -> RecordPointer:
        """Return the last record that is indexed and was pushed to the sorter."""
        return self._applied

    @property
    def catching_up(self) -> bool:
        """Return whether records are being read back from the value log."""
        return not self._caught_up.is_set()

    def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until nothing has to be read back from the value log; return False on timeout."""
        return self._caught_up.wait(timeout_s)

    @property
    def idle(self) -> bool:
        """Return whether everything offered has reached the sorter."""
        with self._lock:
            is_quiet = self._idle and not self._queue and self._behind is None
            return is_quiet and not self._elsewhere and self._failure is None

    def close(self, timeout_s: float) -> bool:
        """Finish the queue, save the sorter's position, end the thread.

        A backlog in the value log, and what the index rejects, is left for the next start. Returns
        False if the thread hangs in it.
        """
        with self._lock:
            self._stop = True
            self._work.notify()
        self._stopping.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the thread

    def _run(self) -> None:
        failed = False
        while True:
            try:
                if failed or self._index.damaged:
                    self._start_over()
                    failed = False
                if not self._step():
                    self._save(force=True)
                    return
            except Exception as error:
                failed = True
                self.errors += 1
                if isinstance(error, StoreError | OSError):
                    log.error("the index %s fails, retrying: %s", self._index.path, error)
                else:
                    log.exception("indexing failed, retrying")
                if self._stopping.wait(_RETRY_INTERVAL_S):
                    log.warning(
                        "closing before all records are indexed; the next start indexes the rest"
                    )
                    return

    def _start_over(self) -> None:
        """Restart after an error: read again from the last record that is surely in the index.

        Entering a record twice changes nothing. A damaged index is rebuilt.
        """
        if self._index.damaged:
            self._index.rebuild()
            self._forget_position()
            begin = self._applied
        else:
            self._index.reopen()
            head = self._index.head_pointer()
            if head < self._applied:
                self._index.set_complete(complete=False)
            begin = min(self._applied, head)
        with self._lock:
            self._behind = begin
            self._caught_up.clear()
            self._late_marks += self._marks_in_hand + [
                item for item in self._queue if isinstance(item, int)
            ]
            self._marks_in_hand = []
            self._queue.clear()
            self._queued = 0
            self._replay = True

    def _step(self) -> bool:
        with self._lock:
            self._is_resting = True
            self._await_work()
            self._is_resting = False
            failure, self._failure = self._failure, None
            if failure is not None:
                self._idle = False
                raise failure
            taken, count = self._next()
            chase = not taken and self._behind is not None and not self._stop
            self._idle = not taken and not chase
            if not taken and self._stop:
                return False
        if taken:
            self._take(taken)
            self._stepped_at = time.monotonic()
            with self._lock:
                self._queued -= count
        elif chase:
            self._catch_up()
        self._save()
        return True

    def _await_work(self) -> None:
        """Wait, with the lock held, for work that is due or for something to save."""
        while True:
            while self._elsewhere or not self._is_due():
                self._idle = not self._queue
                if (
                    not self._work.wait(min(self._save_interval, _MAX_LINGER_S))
                    and not self._elsewhere
                ):
                    return
            since = time.monotonic() - self._stepped_at
            if since < _GATHER_WAIT_S and self._queued < _GROUP_RECORDS and not self._stop:
                self._lock.release()  # records that come meanwhile join this batch
                time.sleep(_GATHER_WAIT_S - since)
                self._lock.acquire()
            if not self._elsewhere:
                return

    def _is_due(self) -> bool:
        """Return, with the lock held, whether the thread has work that can't wait."""
        if self._queue and (
            self._is_wanted or self._queued >= _MAX_LINGERING_RECORDS or self._sorter.is_awaited
        ):
            return True
        return (
            self._behind is not None
            or self._stop
            or self._failure is not None
            or self._index.damaged
        )

    def _next(self) -> tuple[list[SorterBatch | int | threading.Event], int]:
        """Return, with the lock held, the items to index together and their number of records."""
        taken: list[SorterBatch | int | threading.Event] = []
        count = 0
        while self._queue and count < _GROUP_RECORDS:
            item = self._queue.popleft()
            taken.append(item)
            if isinstance(item, SorterBatch):
                count += len(item.offsets)
        self._is_wanted = bool(self._queue)
        self._marks_in_hand = [item for item in taken if isinstance(item, int)]
        return taken, count

    def _take(self, items: list[SorterBatch | int | threading.Event]) -> None:
        """Join neighbours of one segment, so that the index is written in large batches."""
        group: list[SorterBatch] = []
        for item in items:
            if not isinstance(item, SorterBatch):
                self._apply(group)
                group = []
                if isinstance(item, int):
                    self._sorter.mark(item)
                else:
                    item.set()
            else:
                if group and group[0].fid != item.fid:
                    self._apply(group)
                    group = []
                group.append(item)
        self._apply(group)

    def _catch_up(self) -> None:
        """Read back everything between where queueing stopped and where it begins again."""
        with self._lock:
            position = self._behind
        assert position is not None
        final = False
        began, records = time.monotonic(), 0
        finder, known = self._finder(position), self.gaps
        while not final:
            with self._lock:
                end = self._end
                marks, self._late_marks = self._late_marks, []
                self._marks_in_hand = marks
                final = self._log.distance(position, end) <= _NEAR_END_BYTES
                if final:
                    self._behind = None
            if not self._replay:
                self.catch_ups += 1
                self.recoveries += final
            pass_began = time.monotonic()
            for batch in self._log.scan(position, end):
                if finder.see(batch):
                    self._keep_gaps(known, finder)
                # Without timestamps (an unreadable message) there is nothing to index; a Prewrite
                # at 0 would wait forever.
                keep = np.flatnonzero(
                    (batch.starts != 0) | ((batch.commits != 0) & (batch.tps != 0))
                )
                records += len(keep)
                self._enter(batch, keep)
                self._save()
                if self._stop:
                    with self._lock:
                        self._behind = RecordPointer(
                            batch.fid, batch.end
                        )  # nothing queued meanwhile may overtake the rest
                        self._queue.clear()
                    return
            finder.reach(end)
            if finder.found:
                finder.close(max(self._sorter.max_commit_ts, tso.wall_clock() + _MAX_CLOCK_SKEW))
                self._keep_gaps(known, finder)
            if marks:
                self._sorter.mark(max(marks))
            position = end
            if not self._replay:
                self._log.timings.catch_up.observe(time.monotonic() - pass_began)
        self.slow_ends += not self._replay
        self._index.set_complete(complete=True)
        with self._lock:
            self._replay = False
            if self._behind is None:  # the queue may have overflowed again meanwhile
                self._caught_up.set()
        log.info(
            "caught up with %d records from the value log in %.1f s",
            records,
            time.monotonic() - began,
        )
