"""The worker process: it lands, or applies, for one task after another.

Without a task it goes on for as long as the next one may take to come: that of the next run, or the
one that Airflow starts again when a task was killed. A task that has to end ends it, too. Two
worker processes at a time are kept apart as any two processes are: by the relay log's claim, and by
the downstream's lock and checkpoint row.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pickle
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from sluice.errors import DefectError, ours
from sluice.etl.apply import ApplySummary, run_apply
from sluice.etl.copy.rule_changes import warn_of_outdated
from sluice.etl.landing import LandSummary, run_land
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings.airflow_connections import use_connections
from sluice.etl.settings.store_connection import provide_credentials
from sluice.etl.tasks.worker.channel import (
    ALIVE,
    BEGIN,
    DETACH,
    END,
    FAILED,
    FINISHED,
    LOG,
    PROGRESS,
    READY,
    SPEC,
    SPEC_MATCHES,
    MessageChannel,
)
from sluice.etl.tasks.worker.task_spec import (
    LAND,
    SHUTDOWN_GRACE_S,
    WorkerSpec,
    code_fingerprint,
    peer_pid,
    socket_address,
)

log = logging.getLogger("sluice")

HANDOFF_TIMEOUT_S = 60.0
"""The longest time without a task.

The next task takes one to four seconds where there is enough of everything, and took 26 on two
cores with five times the load. Where Airflow's worker was killed it takes up to 40: Airflow misses
the task's heartbeats for `task_instance_heartbeat_timeout` first.
"""
MAX_AGE_S = 3600.0
"""The age at which the next task begins another worker process.

That has renewed certificates, and fresh memory. It is not in the middle of a batch: one that takes
longer than this would be begun again for ever.
"""
ALIVE_INTERVAL_S = 10.0
"""Several times within the silence after which its task kills it."""
_BIND_RETRY_S = 1.0
_SOCKET_TIMEOUT_S = 10.0
"""A task that reads nothing for this time is left: no other could come while it stands still."""
_MAX_BUFFERED_LINES = 1_000


class _LogBuffer(logging.Handler):
    """Keep log records until a task reads them; the oldest goes first."""

    def __init__(self, on_record: Callable[[], None]) -> None:
        super().__init__()
        self._condition = on_record
        self._buffered: collections.deque[dict[str, Any]] = collections.deque(
            maxlen=_MAX_BUFFERED_LINES
        )

    def emit(self, record: logging.LogRecord) -> None:
        fields = record.__dict__ | {"msg": record.getMessage(), "args": None, "exc_info": None}
        if record.exc_info:
            fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
        self._buffered.append(
            {
                key: value
                for key, value in fields.items()
                if isinstance(value, str | int | float | None)
            }
        )
        self._condition()

    def send(self, line: MessageChannel) -> None:
        while self._buffered:
            line.send(LOG, self._buffered[0])
            self._buffered.popleft()


class WorkerServer:
    """The work has the main thread, the tasks have one of their own."""

    def __init__(self, spec: WorkerSpec, line: MessageChannel) -> None:
        self._spec = spec
        self._line: MessageChannel | None = line
        line.socket.settimeout(_SOCKET_TIMEOUT_S)
        self._began = time.monotonic()
        self._deadline = float("inf")
        self._alive_at = 0.0
        self._stop = threading.Event()
        self._patience: threading.Timer | None = None
        self._is_over = False
        self._lock = threading.RLock()
        """Held while the line changes, and while something is sent by it."""
        self._listener: socket.socket | None = None
        self._wake, self._woken = socket.socketpair()
        self._wake.settimeout(0)
        self._says_got_on = True
        self._log = _LogBuffer(self._wake_up)
        self._work = WorkerRole(spec)

    def run(self) -> None:
        """Work until a task asks for the end, or no task comes any longer."""
        root = logging.getLogger()
        root.addHandler(self._log)
        root.setLevel(logging.INFO)
        threading.Thread(target=self._serve, name="attended", daemon=True).start()
        waiting = RetryBackoff(log, f"the task {self._spec.what}")

        def on_progress(progress: object) -> None:
            waiting.over()
            self._on_progress(progress)

        try:
            self._send_logs(*self._result_message(waiting, on_progress))
        finally:
            with self._lock:
                if self._patience is not None:
                    self._patience.cancel()

    def _result_message(
        self, waiting: RetryBackoff, on_progress: Callable[[object], None]
    ) -> tuple[Any, ...]:
        """Return the last message, once there is nothing more to do."""
        while not self._stop.is_set():
            try:
                self._work.run(self._stop, on_progress)
                break
            except Exception as error:
                reason = ours(error)
                if reason.transient:
                    self._stop.wait(waiting.after(reason))
                    continue
                if isinstance(reason, DefectError):
                    log.exception("%s met a defect", self._spec.what)
                return FAILED, type(reason).__name__, str(reason), reason.hint
        return FINISHED, self._work.taken()

    # In the thread of the work

    def _on_progress(self, _: object) -> None:
        if self._says_got_on:
            with self._lock, contextlib.suppress(OSError):
                if self._line is not None:
                    self._line.send(PROGRESS)
                    self._says_got_on = False

    def _send_logs(self, *last: Any) -> None:
        """Send the last message to the attached task, after all earlier records.

        Without one, the next task meets the outcome itself.
        """
        with self._lock:
            self._is_over = True
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            if self._line is not None:
                with contextlib.suppress(OSError):
                    self._log.send(self._line)
                    self._line.send(*last)

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    # In the thread of the tasks

    def _serve(self) -> None:
        try:
            while not self._is_over:
                self._listen()
                self._poll_once()
        except BaseException:  # no task could come any longer
            log.exception("the process of %s ends", self._spec.what)
            os._exit(1)

    def _poll_once(self) -> None:
        """Wait for the next event, and handle it."""
        looking = select.poll()
        with self._lock:
            if self._is_over:
                return
            ends = {
                each.fileno(): each for each in (self._woken, self._listener) if each is not None
            }
            if self._line is not None:
                ends[self._line.socket.fileno()] = self._line.socket
            for number in ends:
                looking.register(number, select.POLLIN)
            wait_s = min(
                self._deadline - time.monotonic(),
                ALIVE_INTERVAL_S if self._line is not None else float("inf"),
                _BIND_RETRY_S if self._listener is None else float("inf"),
            )
        happened = {
            number
            for number, _ in looking.poll(
                None if wait_s == float("inf") else max(0.0, wait_s) * 1000
            )
        }
        with self._lock:
            if self._is_over:
                return
            if self._woken.fileno() in happened:
                self._woken.recv(4096)
            if self._line is not None and self._line.socket.fileno() in happened:
                # first: a task that follows a killed one isn't to find it there
                self._read_message(self._line)
            if self._listener is not None and self._listener.fileno() in happened:
                self._accept()
            self._forward_logs()
            self._report_alive()
            if self._line is None and time.monotonic() >= self._deadline:
                log.info(
                    "worker %s exits: no Airflow task attached for %.0f s",
                    self._spec.what,
                    HANDOFF_TIMEOUT_S,
                )
                self._deadline = float("inf")
                self._end()

    def _listen(self) -> None:
        """Listen under the name, once its last owner is gone."""
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(socket_address(self._spec))
            listener.listen(4)
        except OSError:
            listener.close()
            return
        self._listener = listener

    def _accept(self) -> None:
        """Accept the next run's task, or turn a stranger away."""
        assert self._listener is not None
        end, _ = self._listener.accept()
        line = MessageChannel(end)
        if self._line is not None or self._stop.is_set() or peer_pid(end) is None:
            line.close()
            return
        try:
            end.settimeout(_SOCKET_TIMEOUT_S)
            kind, its_code, spec, lent = line.receive()
            is_same = kind == SPEC and self._matches(its_code, spec)
            if is_same:
                use_connections(lent)
            line.send(SPEC_MATCHES, is_same)
        except (OSError, ValueError):
            line.close()
            return
        self._line, self._deadline, self._says_got_on = line, float("inf"), True

    def _matches(self, its_code: str, spec: bytes) -> bool:
        """Return whether a task's spec and code equal this worker's."""
        if its_code != code_fingerprint() or (
            time.monotonic() - self._began > MAX_AGE_S and not self._work.is_writing
        ):
            return False
        return bool(pickle.loads(spec) == self._spec)  # noqa: S301 see `peer_pid`

    def _read_message(self, line: MessageChannel) -> None:
        try:
            (kind, *_) = line.receive()
            if kind == END or self._listener is None:  # no task could come
                self._end()
            elif kind == DETACH:
                self._log.send(line)
                line.send(FINISHED, self._work.taken())
                self._detach()
        except OSError:
            self._detach()

    def _forward_logs(self) -> None:
        if self._line is not None:
            try:
                self._log.send(self._line)
            except OSError:
                self._detach()

    def _report_alive(self) -> None:
        if self._line is None or time.monotonic() < self._alive_at + ALIVE_INTERVAL_S:
            return
        self._alive_at = time.monotonic()
        try:
            self._line.send(ALIVE)
        except OSError:
            self._detach()

    def _detach(self) -> None:
        """Wait for another task, which may never come."""
        if self._line is not None:
            self._line.close()
        self._line, self._deadline = None, time.monotonic() + HANDOFF_TIMEOUT_S
        if self._listener is None:
            self._end()

    def _end(self) -> None:
        """End in good order, or at the end of the grace period."""
        if not self._stop.is_set():
            self._patience = threading.Timer(SHUTDOWN_GRACE_S, os._exit, (1,))
            self._patience.daemon = True
            self._patience.start()
            self._stop.set()


class WorkerRole:
    """Landing or applying, and what was done since that was asked last."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._summary: LandSummary | ApplySummary = (
            LandSummary() if spec.what == LAND else ApplySummary()
        )
        self._writing = threading.Lock()
        """Held while a batch is written."""

    @property
    def is_writing(self) -> bool:
        """Return whether a batch is being written."""
        return self._writing.locked()

    def run(self, stop: threading.Event, on_progress: Callable[[object], None]) -> None:
        """Work until `stop` is set, or the spec's timestamp is reached.

        Raises as `run_land` and `run_apply`.
        """
        spec, summary = self._spec, self._summary
        if isinstance(summary, LandSummary):
            run_land(spec.settings, stop=stop, on_window=on_progress, summary=summary)
        else:
            warn_of_outdated(spec.settings)
            run_apply(
                spec.settings, stop=stop, until_ts=spec.until_ts, on_batch=on_progress,
                summary=summary, writing=self._writing,
            )  # fmt: skip

    def taken(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return self._summary.taken().as_dict()


def main(descriptor: int) -> None:
    """Run a worker process, with the socket to its task."""
    code_fingerprint()  # of what is imported, not of what may lie there later
    line = MessageChannel(socket.socket(fileno=descriptor))
    try:
        _, _, spec, lent = line.receive()
        line.send(READY)
        if line.receive()[0] != BEGIN:
            return
    except OSError:
        return
    use_connections(lent)
    wanted: WorkerSpec = pickle.loads(spec)  # noqa: S301 from its task
    provide_credentials(wanted.settings)
    WorkerServer(wanted, line).run()
    os._exit(0)  # what is left are other people's threads
