"""Several standing workers at once: the rows of large calls are shared out among them, so that a backlog needs no Spark
job for each window.

Each member is a task of one pool of threads and, while there is something to do, a standing worker
(`etl.spark.standing`). It takes a row once its worker is ready, so no row waits for a worker that finds no free core.
Members let their workers go soon after nothing waits any longer, and after `_STANDS_S` at the latest: whoever else
wants a core gets it then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from errors import Signal
from etl.spark.standing import StandingWorker

__all__ = ["Crew", "NobodyCameError"]

log = logging.getLogger("sluice.spark")

_STANDS_S = 10.0
_STAYS_S = 1.0  # with nothing to do
_MOST = 16


class NobodyCameError(Signal):
    """No standing worker takes a call: it has to be a job."""


class _Row:
    """A row of a call, and what becomes of it."""

    def __init__(self, task: pa.Table, timeout_s: float) -> None:
        self.task = task
        self.timeout_s = timeout_s
        self.result: Future[list[pa.RecordBatch]] = Future()

    def go_through(self, worker: StandingWorker) -> None:
        """Have a worker that is ready see to it."""
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(list(worker.call(self.task, self.timeout_s)))
        except BaseException as error:  # it is the caller's
            self.result.set_exception(error)


class Crew:
    """Threads may call at once."""

    def __init__(self, make: Callable[[], StandingWorker]) -> None:
        """`make`: a worker that nobody else calls."""
        self._make = make
        self._pool = _pool()
        self._changed = threading.Condition()
        self._waiting: deque[_Row] = deque()
        self._workers: list[StandingWorker] = []
        """All there ever were; each remembers when none came."""
        self._at_work: set[StandingWorker] = set()
        self._coming: set[StandingWorker] = set()
        """Of those at work the one that isn't ready yet: where there is no core for it there is none for another."""
        self._releases = 0
        """How often all cores were to be given back: a member that has nothing to do leaves then."""
        self._rows = 0
        """That wait or are worked on: no more members than that."""

    def __call__(self, tasks: pa.Table, timeout_s: float) -> list[pa.RecordBatch]:
        """What the function makes of each of these rows, in their order; `timeout_s` as of a StandingWorker's call.
        Raises SparkError, what failed in a worker as Spark would, and NobodyCameError, which may come in the middle, as
        a SparkUnavailableError of `make`'s workers may.
        """
        rows = [_Row(tasks.slice(n, 1), timeout_s) for n in range(tasks.num_rows)]
        with self._changed:
            self._waiting.extend(rows)
            self._rows += len(rows)
            self._one_more()
            self._changed.notify(len(rows))
        try:
            return [batch for row in rows for batch in row.result.result()]
        finally:
            for row in rows:
                row.result.cancel()
            with self._changed:
                self._rows -= len(rows)

    def release(self) -> None:
        """Give all cores back, whoever may be calling."""
        with self._changed:
            workers = list(self._at_work)
            self._releases += 1
            self._changed.notify_all()
        for worker in workers:
            worker.release()

    def _one_more(self) -> None:
        """Begin another member, if it is of use. Where none can begin, and none is at work, nobody comes. `_changed` is
        held.
        """
        if self._coming or len(self._at_work) >= min(self._rows, _MOST):
            return
        worker = next((worker for worker in self._workers if worker not in self._at_work), None)
        try:
            if worker is None:
                worker = self._make()
                self._workers.append(worker)
            self._pool.submit(self._work, worker)
        except Exception as error:  # no thread, or no memory, is to be had
            log.warning("no member of the Spark crew can begin (%d are at work): %s", len(self._at_work), error)
            pool, self._pool = self._pool, _pool()
            pool.shutdown(wait=False, cancel_futures=True)  # a task without a thread stays in its queue
            if not self._at_work:
                self._give_up(NobodyCameError())
            return
        self._at_work.add(worker)
        self._coming.add(worker)

    def _work(self, worker: StandingWorker) -> None:
        """Row after row, until none has come for a while, or no worker comes."""
        came = True
        left: BaseException = NobodyCameError()
        try:
            while self._is_something_waiting() and (came := worker.is_ready(_STANDS_S)):
                row = self._taken(worker)
                if row is not None:
                    row.go_through(worker)
        except BaseException as error:  # nobody can come
            came, left = False, error
        finally:
            try:
                worker.release()
            finally:
                self._leave(worker, came=came, left=left)

    def _taken(self, worker: StandingWorker) -> _Row | None:
        """The next row for a worker that is ready."""
        with self._changed:
            self._coming.discard(worker)
            row = self._waiting.popleft() if self._waiting else None
            if self._waiting:
                self._one_more()
            return row

    def _leave(self, worker: StandingWorker, *, came: bool, left: BaseException) -> None:
        """Give up the rows of which no member takes care when this one leaves. `came`: it leaves for want of something
        to do. `left`: why its worker didn't come.
        """
        with self._changed:
            self._coming.discard(worker)
            self._at_work.discard(worker)
            if came and self._waiting:  # since it has looked
                self._one_more()
            if not self._at_work:
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
            self._changed.wait_for(lambda: self._waiting or self._releases != releases, _STAYS_S)
            return bool(self._waiting)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST, "standing-crew")
