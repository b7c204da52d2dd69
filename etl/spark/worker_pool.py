"""Persistent workers: one for small calls, and several that share the rows of large ones.

So neither a small window nor a backlog needs a Spark job for each window. The one for small calls
stays: it is called in the caller's thread, which costs no hand-over. A large call releases it.

Each member of the others is a task of one pool of threads and, while there is something to do, a
persistent worker (`sluice.etl.spark.persistent_worker`). It takes a row once its worker is ready,
so no row waits for a worker that finds no free core. Members release their workers soon after the
last row, and after `_MAX_LIFETIME_S` at the latest: another job that waits for a core gets it then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from sluice.errors import Signal
from sluice.etl.spark.persistent_worker import PersistentWorker

__all__ = ["NoWorkerAvailable", "WorkerPool"]

log = logging.getLogger("sluice.spark")

_MAX_LIFETIME_S = 10.0
_IDLE_TIMEOUT_S = 1.0  # with nothing to do
_MAX_WORKERS = 16


class NoWorkerAvailable(Signal):
    """No persistent worker takes a call: it has to be a job."""


class _PendingRow:
    """A row of a call, and what becomes of it."""

    def __init__(self, task: pa.Table, timeout_s: float) -> None:
        self.task = task
        self.timeout_s = timeout_s
        self.result: Future[list[pa.RecordBatch]] = Future()

    def run_on(self, worker: PersistentWorker) -> None:
        """Run the row on a worker that is ready."""
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(list(worker.call(self.task, self.timeout_s)))
        except BaseException as error:  # it is the caller's
            self.result.set_exception(error)


class WorkerPool:
    """Threads may call at once."""

    def __init__(self, make: Callable[[], PersistentWorker]) -> None:
        """Create the worker pool; `make`: returns a worker that has no other caller."""
        self._make = make
        self._one: PersistentWorker | None = None
        self._one_lock = threading.Lock()
        """Held while the worker for small calls is at work."""
        self._pool = _thread_pool()
        self._changed = threading.Condition()
        self._waiting: deque[_PendingRow] = deque()
        self._workers: list[PersistentWorker] = []
        """All there ever were; each remembers when none came."""
        self._active: set[PersistentWorker] = set()
        self._starting: set[PersistentWorker] = set()
        """The active worker that isn't ready: without a core for it there is none for another."""
        self._releases = 0
        """Number of releases of all cores: a member without a row leaves then."""
        self._row_count = 0
        """Rows queued or running; an upper bound on the pool size."""

    def __call__(self, tasks: pa.Table, timeout_s: float) -> list[pa.RecordBatch]:
        """Return the function's results for each of these rows, in their order.

        `timeout_s` as of a PersistentWorker's call. Raises SparkError, what failed in a worker as
        Spark would, and NoWorkerAvailable, which may come in the middle, as a SparkUnavailableError
        of `make`'s workers may.
        """
        with self._one_lock:
            if self._one is not None:
                self._one.release()
        rows = [_PendingRow(tasks.slice(n, 1), timeout_s) for n in range(tasks.num_rows)]
        with self._changed:
            self._waiting.extend(rows)
            self._row_count += len(rows)
            self._maybe_grow()
            self._changed.notify(len(rows))
        try:
            return [batch for row in rows for batch in row.result.result()]
        finally:
            for row in rows:
                row.result.cancel()
            with self._changed:
                self._row_count -= len(rows)

    def on_one(
        self, tasks: pa.Table, timeout_s: float, core_timeout_s: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the function's results for these rows, as they come; one worker takes all of them.

        One call at a time. Raises NoWorkerAvailable, and NoFreeCore after `core_timeout_s`, before
        any worker has begun, and otherwise as a call of the pool does.
        """
        with self._one_lock:
            worker = self._single()
            if not worker.is_ready(core_timeout_s=core_timeout_s):
                raise NoWorkerAvailable
            yield from worker.call(tasks, timeout_s)

    def warm_up(self) -> None:
        """Start the worker of `on_one`, if one can start."""
        with self._one_lock:
            self._single().is_ready()

    def _single(self) -> PersistentWorker:
        if self._one is None:
            self._one = self._make()
        return self._one

    def release(self) -> None:
        """Give all cores back, also during calls."""
        if self._one is not None:
            self._one.release()
        with self._changed:
            workers = list(self._active)
            self._releases += 1
            self._changed.notify_all()
        for worker in workers:
            worker.release()

    def _maybe_grow(self) -> None:
        """Begin another member, if it is of use.

        Where none can begin, and none is at work, the rows fail. `_changed` is held.
        """
        if self._starting or len(self._active) >= min(self._row_count, _MAX_WORKERS):
            return
        worker = next((worker for worker in self._workers if worker not in self._active), None)
        try:
            if worker is None:
                worker = self._make()
                self._workers.append(worker)
            self._pool.submit(self._work, worker)
        except Exception as error:  # no thread, or no memory, is to be had
            log.warning(
                "cannot start another persistent worker, %d are at work: %s",
                len(self._active),
                error,
            )
            pool, self._pool = self._pool, _thread_pool()
            # a task without a thread stays in its queue
            pool.shutdown(wait=False, cancel_futures=True)
            if not self._active:
                self._give_up(NoWorkerAvailable())
            return
        self._active.add(worker)
        self._starting.add(worker)

    def _work(self, worker: PersistentWorker) -> None:
        """Row after row, until none has come for a while, or no worker comes."""
        came = True
        left: BaseException = NoWorkerAvailable()
        try:
            while self._is_something_waiting() and (came := worker.is_ready(_MAX_LIFETIME_S)):
                row = self._next_row(worker)
                if row is not None:
                    row.run_on(worker)
        except BaseException as error:  # no worker can come
            came, left = False, error
        finally:
            try:
                worker.release()
            finally:
                self._orphaned_rows(worker, came=came, left=left)

    def _next_row(self, worker: PersistentWorker) -> _PendingRow | None:
        """Return the next row for a worker that is ready."""
        with self._changed:
            self._starting.discard(worker)
            row = self._waiting.popleft() if self._waiting else None
            if self._waiting:
                self._maybe_grow()
            return row

    def _orphaned_rows(self, worker: PersistentWorker, *, came: bool, left: BaseException) -> None:
        """Give up the rows of which no member takes care when this one leaves.

        `came`: it leaves for want of something to do. `left`: why its worker didn't come.
        """
        with self._changed:
            self._starting.discard(worker)
            self._active.discard(worker)
            if came and self._waiting:  # since it has looked
                self._maybe_grow()
            if not self._active:
                self._give_up(left)

    def _give_up(self, why: BaseException) -> None:
        """Fail the rows that wait. `_changed` is held."""
        while self._waiting:
            row = self._waiting.popleft()
            if row.result.set_running_or_notify_cancel():
                row.result.set_exception(why)

    def _is_something_waiting(self) -> bool:
        with self._changed:
            releases = self._releases
            self._changed.wait_for(
                lambda: self._waiting or self._releases != releases, _IDLE_TIMEOUT_S
            )
            return bool(self._waiting)


def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_WORKERS, "spark-worker-pool")
