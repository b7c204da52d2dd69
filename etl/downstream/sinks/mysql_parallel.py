"""Write changes that don't conflict through several sessions side by side; mode `parallel`.

While changes are in flight the checkpoint row shows it: `consistent` is false, and it names the
end of the in-flight batch and the owner, a token of this process. Every session locks the row
(shared, where the server can), and finds that token, before it commits anything. So a process that
takes over changes the token first, and shuts out whatever of the one before still runs. Then the
same changes, through the same end, are written again in one transaction with the checkpoint: every
image of their rows goes by key, and what they are in the end comes (`Segment.replayed`), so it
makes no difference in which mode, or with which overrides, they were begun. What only its values
identify is in the checkpoint's own transaction in the first place, and is never written twice.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluice.etl.changes import server_errors
from sluice.etl.changes.rules import Filter
from sluice.etl.changes.steps import InFlightDetail, RowsDetail, Step
from sluice.etl.changes.write_plans.conflict_groups import CHECKPOINT_SESSION
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointTable,
    DownstreamError,
    InFlight,
    MySQLSession,
    Query,
)
from sluice.etl.downstream.sinks._coalesce import are_coalesced
from sluice.etl.downstream.sinks.mysql import ChangeOrigin, MySQLSink
from sluice.etl.downstream.sinks.sink import ApplyError, SinkResult
from sluice.etl.downstream.sinks.write_executor import WriteExecutor
from sluice.etl.settings import Downstream

_MAX_QUEUED_BYTES = 32 * 2**20
_SESSION_TTL_S = 300.0
"""A session that did nothing for so long may have been ended by the server: another one is begun.
"""
_COLLISION_ERRORS = frozenset(
    {server_errors.RECORD_CHANGED, server_errors.LOCK_WAIT_TIMEOUT, server_errors.DEADLOCK}
)
_RETRY_DELAYS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_PARTIAL_COMMIT_HINT = "Others of the batch are committed, perhaps"
_FLUSH = object()
_END = object()


class _WriterThread:
    """A session with a thread.

    The steps that wait for it are one transaction: near by that is mostly one step, so its locks
    are held briefly; far away it is all that has come during the round trips of those before. The
    first error is kept; what comes after it is dropped.
    """

    def __init__(self, session: MySQLSession, table: CheckpointTable, number: int) -> None:
        self._session = session
        self._table = table
        self._number = number
        self._last_used = 0.0
        self._writer = WriteExecutor(session, _PARTIAL_COMMIT_HINT)
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._flushed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"sluice-worker-{number}", daemon=True
        )
        self._thread.start()

    def write(
        self, steps: Sequence[Step], checkpoint: Checkpoint, channel: int | None = None
    ) -> None:
        """Queue steps to execute and commit, in order, with the mark of `channel`.

        Between two channels is a flush. Raises the error of an earlier one.
        """
        self._put((steps, checkpoint, channel))

    def begin_flush(self) -> None:
        """Request a signal when everything is committed."""
        self._flushed.clear()
        self._put(_FLUSH)

    def end_flush(self) -> None:
        """Wait until the flush is over. Raises the first error."""
        self._flushed.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Cut the connection: what is not committed is rolled back."""
        self._error = self._error or InterruptedError("closed")
        self._session.close()
        self._orders.put(_END)
        self._thread.join(timeout=10)

    def _put(self, order: Any) -> None:
        if self._error is not None:
            raise self._error
        self._orders.put(order)

    def _run(self) -> None:
        order = self._orders.get()
        while order is not _END:
            if order is _FLUSH:
                self._flushed.set()
                order = self._orders.get()
                continue
            steps, (_, checkpoint, channel) = [*order[0]], order
            while (
                (order := self._waiting()) is not None and order is not _FLUSH and order is not _END
            ):
                steps += order[0]
            try:
                if self._error is None:
                    self._execute(steps, checkpoint, channel)
            except BaseException as error:
                self._error = self._error or error
                self._session.close()  # rolls back, so that no session waits for its locks
            order = order or self._orders.get()

    def _waiting(self) -> Any:
        """Return the next order if there is one, else None."""
        try:
            return self._orders.get_nowait()
        except queue.Empty:
            return None

    def _execute(self, steps: Sequence[Step], checkpoint: Checkpoint, channel: int | None) -> None:
        """Execute all of the steps or none.

        One by one if the downstream's rows aren't those that one of them expects, so that the
        error is about that one alone.
        """
        self._connect()
        try:
            self._commit(steps, checkpoint, channel)
        except ApplyError:
            # What a process that was taken over finds is what its successor has written: that is no
            # refusal.
            self._table.lock(checkpoint, shared=True)
            if len(steps) == 1:
                raise
            self._session.rollback()
            for step in steps:
                try:
                    self._commit([step], checkpoint, channel)
                except ApplyError:
                    self._table.lock(checkpoint, shared=True)
                    raise

    def _connect(self) -> None:
        if not self._session.is_connected or time.monotonic() - self._last_used > _SESSION_TTL_S:
            self._session.connect()
            self._table.writer_lock().hold(self._session, self._number)
            # Gap locks of neighbours would only make sessions wait for one another.
            self._session.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            self._session.query("COMMIT")  # so that it holds from the next statement on

    def _commit(self, steps: Sequence[Step], checkpoint: Checkpoint, channel: int | None) -> None:
        for pause_s in (*_RETRY_DELAYS_S, None):
            try:
                # As autocommit is off, the first statement begins a transaction: no round trip for
                # that alone.
                if not self._is_sent_whole(steps, checkpoint):
                    self._writer.write_all(steps)
                    self._table.lock(checkpoint, shared=True)
                self._session.commit(channel)
                self._last_used = time.monotonic()
                return
            except DownstreamError as error:
                # The server has rolled it back, or is asked to below: neighbours in an index may
                # collide though no row is shared.
                if error.code not in _COLLISION_ERRORS or pause_s is None:
                    raise
                self._session.rollback()
                time.sleep(pause_s)

    def _is_sent_whole(self, steps: Sequence[Step], checkpoint: Checkpoint) -> bool:
        """Execute small steps, and lock the row, in one round trip.

        False, with nothing of it done, if it can't be so.
        """
        if not self._session.is_pipelining or not are_coalesced(steps):
            return False
        question = Query(self._table.lock_statement(shared=True))
        *answers, found = self._session.execute_pipelined(
            [*self._writer.orders(steps, safe=False), question]
        )
        if isinstance(found, DownstreamError):
            raise found
        self._table.expect(checkpoint, found if isinstance(found, list) else [])
        if self._writer.did(steps, answers, safe=False):
            return True
        self._session.rollback()
        return False


class ParallelMySQLSink(MySQLSink):
    """A database that speaks the MySQL protocol, written by several sessions.

    It is complete and consistent at its checkpoint.
    """

    write_plan = "groups"

    def __init__(self, downstream: Downstream, origin: ChangeOrigin, cluster_id: int) -> None:
        session = MySQLSession(downstream)
        table = CheckpointTable.from_settings(session, downstream, cluster_id)
        super().__init__(session, table, Filter(), origin=origin)
        self._rules = origin.rules
        self._downstream = downstream
        self._cluster_id = cluster_id
        self._workers: list[_WriterThread] = []
        self._waiting_bytes = 0
        self._channel: int | None = None
        """That of the changes in flight."""

    @classmethod
    def open(
        cls, downstream: Downstream, origin: ChangeOrigin, cluster_id: int
    ) -> ParallelMySQLSink:
        """Return the sink of the database that the settings name; nothing is connected yet."""
        return cls(downstream, origin, cluster_id)

    def close(self) -> None:
        self._close_workers()
        super().close()

    def recover(self) -> Checkpoint | None:
        self._close_workers()
        self._waiting_bytes = 0
        return super().recover()

    def remember_blocked(self, refusal: str, decided: Sequence[int]) -> None:
        self._close_workers()
        super().remember_blocked(refusal, decided)

    def _execute_all(self, steps: Sequence[Step], written: SinkResult) -> None:
        waiting: dict[int, list[Step]] = {}
        for step in steps:
            worker = self._worker_of(step) if step.kind in ("delete", "load") else None
            if worker is not None:
                waiting.setdefault(worker, []).append(step)
                continue
            self._dispatch(waiting, written)
            self._execute(step, written)
        self._dispatch(waiting, written)

    def _dispatch(self, waiting: dict[int, list[Step]], written: SinkResult) -> None:
        """Hand each session its steps."""
        checkpoint = self._row.value
        for worker, steps in waiting.items():
            assert checkpoint is not None
            size = sum(len(step.payload) for step in steps)
            if self._waiting_bytes + size > _MAX_QUEUED_BYTES:
                self._flush(written)
            self._waiting_bytes += size
            self._worker(worker).write(steps, checkpoint, self._channel)
        waiting.clear()

    def _execute(self, step: Step, written: SinkResult) -> None:
        match step.kind:
            case "flight":
                self._begin_in_flight(step)
            case "flush":
                self._flush(written)
            case "delete" | "load":
                self._row.begin(lock=False)  # the workers need the lock
                started = time.perf_counter()
                self._writer.follow(self._row.value)
                # in no attempt before this one was it committed
                self._writer.write(step, safe=self._in_safe_mode)
                written.send_s += time.perf_counter() - started
            case "commit":
                self._flush(written)
                super()._execute(step, written)
            case _:
                super()._execute(step, written)

    @staticmethod
    def _worker_of(step: Step) -> int | None:
        """Return which session beside the checkpoint's executes a delete or load step.

        None: the checkpoint's own.
        """
        worker = step.detail_of(RowsDetail).worker
        return None if worker == CHECKPOINT_SESSION else worker

    def _begin_in_flight(self, step: Step) -> None:
        """Write the in-flight batch to the checkpoint row, before anything of it is written."""
        detail = step.detail_of(InFlightDetail)
        before = self._row.value or Checkpoint(detail.after_ts)
        if before.in_flight is not None:
            raise ValueError(
                f"changes through {before.in_flight.until} are in flight: what follows can't begin"
                " before they are written"
            )
        self._channel = detail.channel
        in_flight = InFlight(step.commit_ts, detail.left_out, self._rules)
        self._row.change(
            replace(before, consistent=False, in_flight=in_flight), lambda: self._confirm(step)
        )

    def _flush(self, written: SinkResult) -> None:
        started = time.perf_counter()
        for worker in self._workers:
            worker.begin_flush()
        for worker in self._workers:
            worker.end_flush()
        self._waiting_bytes = 0
        written.send_s += time.perf_counter() - started

    def _worker(self, number: int) -> _WriterThread:
        while len(self._workers) <= number:
            session = MySQLSession(self._downstream, ahead=self._session.ahead)
            table = CheckpointTable.from_settings(session, self._downstream, self._cluster_id)
            self._workers.append(_WriterThread(session, table, len(self._workers)))
        return self._workers[number]

    def _close_workers(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
