"""A task's side of a worker process: attach to a running one or start one, and follow it.

It passes the worker's messages on, and leaves the worker to the next run, or ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from sluice.errors import SluiceError
from sluice.etl.settings.airflow_connections import resolve_connections
from sluice.etl.tasks.worker.channel import (
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
    SHUTDOWN_GRACE_S,
    WorkerSpec,
    code_fingerprint,
    peer_pid,
    socket_address,
)

log = logging.getLogger("sluice")

_IS_ALONE = "AIRFLOW_IS_K8S_EXECUTOR_POD"
"""Set where a task has a pod of its own, with which everything in it ends."""
_POLL_INTERVAL_S = 0.5
_ANSWER_TIMEOUT_S = 10.0
_SHUTDOWN_MARGIN_S = 30.0
SILENCE_TIMEOUT_S = 50.0
"""A worker that stands still is replaced within a minute. One that works reports every ten seconds
by a thread of its own, however long a batch or a DDL statement takes.
"""
_MAX_OUTPUT_CHARS = 2_000


class WorkerLostError(SluiceError):
    """The worker process is gone without a result."""

    transient = True
    hint = "see the machine's log; memory that was short is the usual reason"


class _RemoteError(SluiceError):
    """An error of the worker's.

    Each has a class of its own by the name of the original's, which can't be had without what it
    was made of.
    """

    hint = "see the task's log"


def run_in_worker(
    spec: WorkerSpec,
    left_s: Callable[[], float],
    stop: threading.Event,
    on_progress: Callable[[object], None],
) -> dict[str, Any]:
    """Run the work in a worker process for the task's time, and leave that to the next run's task.

    Returns what it did meanwhile. The worker ends when it is done, and in good order when `stop` is
    set, as SIGTERM does. A task with a dead parent no longer belongs to Airflow: it leaves the
    worker as if it had been killed itself.

    Raises WorkerLostError if the worker dies, else what it raised, by name, message and `hint`.
    """
    with stop_on_sigterm(stop):
        return _run(spec, left_s, stop, on_progress)


def _run(
    spec: WorkerSpec,
    left_s: Callable[[], float],
    stop: threading.Event,
    on_progress: Callable[[object], None],
) -> dict[str, Any]:
    at_hand = _WorkerHandle.attach(spec)
    if at_hand is None or not at_hand.is_same:
        following = _WorkerHandle.spawn(spec)
        following.wait_ready()
        if at_hand is not None:  # it went on until now
            at_hand.end()
        following.begin()
        at_hand = following
    try:
        return at_hand.follow(left_s, stop, on_progress)
    finally:
        at_hand.close()


@contextlib.contextmanager
def stop_on_sigterm(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM, if this is the main thread.

    Airflow sends it when an operator clears a task, or marks it or its run, and SIGKILL seconds
    later.
    """

    def stopped(number: int, frame: Any) -> None:
        stop.set()
        if callable(before):
            before(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stopped)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _WorkerHandle:
    """A worker process as its task sees it."""

    def __init__(
        self, line: MessageChannel, spec: WorkerSpec, errors: IO[bytes] | None = None
    ) -> None:
        self.line = line
        self.is_same = True
        self._spec = spec
        self._errors = errors
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._parent = os.getppid()  # before anything is waited for

    @classmethod
    def attach(cls, spec: WorkerSpec) -> _WorkerHandle | None:
        """Attach to the worker that the last run has left, None if it is missing or taken."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line = MessageChannel(end)
        try:
            end.settimeout(_ANSWER_TIMEOUT_S)
            end.connect(socket_address(spec))
            if (pid := peer_pid(end)) is None:
                raise ConnectionRefusedError
            found = cls(line, spec)
            found._pid = pid
            found._send_spec()
            kind, same = line.receive()
            if kind != SPEC_MATCHES:
                raise ConnectionRefusedError
            end.settimeout(None)
        except (OSError, ValueError):
            line.close()
            return None
        found.is_same = same
        log.info(
            "%s goes on in the process of the run before%s",
            spec.what,
            "" if same else ", until another one follows",
        )
        return found

    @classmethod
    def spawn(cls, spec: WorkerSpec) -> _WorkerHandle:
        """Start a worker, which imports what it needs and waits to begin.

        Raises WorkerLostError.
        """
        own, other = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 it is read when the process has died
        with other:
            found = cls(MessageChannel(own), spec, errors)
            found._process = subprocess.Popen(
                [sys.executable, "-m", "sluice.etl.tasks.worker", str(other.fileno())],
                pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
                # what ends a task's processes leaves it be, and it ends by itself
                start_new_session=True,
            )  # fmt: skip
        found._pid = found._process.pid
        try:
            found._send_spec()
        except OSError:  # it has ended before it read
            raise found._worker_lost(works=False) from None
        return found

    def wait_ready(self) -> None:
        """Wait until the worker has imported everything. Raises WorkerLostError."""
        try:
            while self.line.receive()[0] != READY:
                pass
        except OSError:
            raise self._worker_lost(works=False) from None

    def begin(self) -> None:
        """Order the worker to begin, once it is ready. Raises WorkerLostError."""
        try:
            self.line.send(BEGIN)
        except OSError:
            raise self._worker_lost() from None

    def end(self) -> None:
        """End the worker in good order, else kill it: its successor takes over then."""
        try:
            self.line.socket.settimeout(SHUTDOWN_GRACE_S + _SHUTDOWN_MARGIN_S)
            self.line.send(END)
            while self._read_result(self.line.receive(), lambda _: None) is None:
                pass
        except (OSError, SluiceError) as error:
            log.warning("the previous worker process didn't end in good order: %s", error)
            self._kill()
        self.close()

    def follow(
        self,
        left_s: Callable[[], float],
        stop: threading.Event,
        on_progress: Callable[[object], None],
    ) -> dict[str, Any]:
        """Pass the worker's messages on, until it is over or left. Raises as `run_in_worker`."""
        looking = select.poll()
        looking.register(self.line.socket, select.POLLIN)
        heard = time.monotonic()
        deadline, is_asked = heard + left_s(), False
        answers = float("inf")
        try:
            while True:
                # Airflow begins another one then, which would find the worker taken
                if os.getppid() != self._parent:
                    log.warning(
                        "parent process exited; leaving worker %s to the next task", self._spec.what
                    )
                    return {}
                left = deadline - time.monotonic()
                if not is_asked and (stop.is_set() or left <= 0):
                    is_asked, answers = (
                        True,
                        time.monotonic() + SHUTDOWN_GRACE_S + _SHUTDOWN_MARGIN_S,
                    )
                    stays = (
                        not stop.is_set()
                        and self._spec.until_ts is None
                        and _IS_ALONE not in os.environ
                    )
                    self.line.send(DETACH if stays else END)
                wait_s = _POLL_INTERVAL_S if is_asked else max(0.0, min(left, _POLL_INTERVAL_S))
                if looking.poll(wait_s * 1000):
                    done = self._read_result(self.line.receive(), on_progress)
                    if done is not None:
                        return done
                    heard = time.monotonic()
                elif time.monotonic() > heard + SILENCE_TIMEOUT_S:
                    log.warning(
                        "killing worker %s: silent_s=%.0f", self._spec.what, SILENCE_TIMEOUT_S
                    )
                    self._kill()
                if time.monotonic() > answers:  # it stands still
                    self._kill()
        except OSError:
            raise self._worker_lost() from None

    def close(self) -> None:
        """Close the connection to a worker that was neither left nor ended.

        As when this process dies: another task may come.
        """
        self.line.close()
        if self._errors is not None:
            self._errors.close()

    def _send_spec(self) -> None:
        self.line.send(
            SPEC,
            code_fingerprint(),
            pickle.dumps(self._spec),
            resolve_connections(self._spec.settings),
        )

    @staticmethod
    def _read_result(
        message: tuple[Any, ...], on_progress: Callable[[object], None]
    ) -> dict[str, Any] | None:
        """Handle a message, and return the result that the last one brings."""
        match message:
            case (str(kind), fields) if kind == LOG:
                record = logging.makeLogRecord(fields)
                logging.getLogger(record.name).handle(record)
            case (str(kind),) if kind == PROGRESS:
                on_progress(None)
            case (str(kind), dict() as done) if kind == FINISHED:
                return done
            case (str(kind), name, message, hint) if kind == FAILED:
                raise type(name, (_RemoteError,), {"hint": hint})(message)
        return None

    def _kill(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)

    def _worker_lost(self, *, works: bool = True) -> WorkerLostError:
        """Return the error for a lost worker.

        `works`: its installation does. If it doesn't, and the worker wasn't killed, trying again is
        useless.
        """
        code: int | None = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(1)
        output = b""
        if self._errors is not None:
            self._errors.seek(0)
            output = self._errors.read()[-_MAX_OUTPUT_CHARS:]
        ended = "" if code is None else f" (exit code {code})"
        detail = f": {text}" if (text := output.decode(errors="replace").strip()) else ""
        transient = works or code is None or code < 0
        return WorkerLostError(
            f"the process of {self._spec.what} is gone{ended}{detail}", transient=transient
        )
