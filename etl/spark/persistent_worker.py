"""A persistent worker: one long Spark job that serves the process that began it, call after call.

A Spark job costs 40 to 90 ms and as much CPU, however little it does: planning, scheduling, handing
batches from process to process. Small windows come many times a second. So the job is begun once.
Its task, in one of Spark's Python workers, connects back to a socket of this process, and maps the
batches it receives by the same function as jobs of their own do. It has one of Spark's cores while
it lives, so it ends soon (`_MAX_LIFETIME_S`) and another one follows: a job that waits for a core
gets it between the two.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.errors import PySparkException

from sluice.errors import Signal
from sluice.etl.settings import Spark
from sluice.etl.spark import reachability
from sluice.etl.spark._line import ALIVE, BATCH, CALL, END, FAILED, WorkerConnection
from sluice.etl.spark._line_tls import CallerCertificate, TlsSocket
from sluice.etl.spark.errors import SlowWorkerError, SparkError, parse_worker_error
from sluice.etl.spark.job import TaskFrame, tagged
from sluice.etl.spark.persistent_worker_task import IDLE_TIMEOUT_S, ServeCalls
from sluice.etl.spark.worker_tuning import TEXTS

__all__ = ["NoFreeCore", "PersistentWorker"]

log = logging.getLogger("sluice.spark")

# a first worker starts Python; one that finds no way here fails by itself, after 5 s
_START_TIMEOUT_S = 60.0
_HANDSHAKE_TIMEOUT_S = 2.0
_SHUTDOWN_TIMEOUT_S = 2.0
_RETRY_INTERVAL_S = 60.0
_MAX_LIFETIME_S = 60.0
# a worker sends a heartbeat every few seconds; one that doesn't stands still
_HEARTBEAT_TIMEOUT_S = 30.0
_NO_THREAD = "can't start new thread"
_numbers = itertools.count(1)


class NoFreeCore(Signal):
    """Spark has no core for a worker yet; its job waits for one, and is asked for again."""


class PersistentWorker:
    """At most one persistent worker at a time. One thread calls; others may release."""

    def __init__(
        self,
        spark: Any,
        server: Spark,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schemas: tuple[pa.Schema, pa.Schema],
    ) -> None:
        """Create the persistent worker; `spark`: a session on this Spark Connect server.

        `function` maps batches in the first of the schemas to batches in the second.
        """
        self._spark = spark
        self._server = server
        self._function = function
        self._schemas = schemas
        self._line: WorkerConnection | None = None
        self._jobs: list[_WorkerJob] = []
        """The newest, and those before it that may not be over."""
        self._starting: _StartingWorker | None = None
        """The one that waits for a core, between two calls of `is_ready`."""
        self._lacked_core = False
        self._aged_out = 0.0
        """When the one before was released for its age; 0 once its successor has come, or can't."""
        self._came = 0.0
        self._again = 0.0
        self._logged = False
        self._is_released = False

    def is_ready(self, max_age_s: float | None = None, core_timeout_s: float | None = None) -> bool:
        """Return whether a worker stands by.

        Begins one if none does, or it has stood for `max_age_s`, and waits until it has come. False
        if none comes: then it is not tried again for a while. Raises SparkUnavailableError where
        the server is away, or goes meanwhile; NoFreeCore where its job has waited for a core for
        `core_timeout_s`, and goes on waiting. A caller that gives it can do without: the
        successor of one that has stood for long isn't waited for at all, and NoFreeCore is raised
        until it has come.
        """
        now = time.monotonic()
        if self._line is not None and now >= self._came + (
            _MAX_LIFETIME_S if max_age_s is None else max_age_s
        ):
            self.release()
            self._aged_out = now
        is_worth_trying = core_timeout_s is not None and self._lacked_core
        if self._line is None and (now >= self._again or is_worth_trying):
            self._lacked_core = False
            self._line = self._start_worker(core_timeout_s)
            self._aged_out = 0.0
            self._came = time.monotonic()
            if self._line is None:
                self._again = self._came + _RETRY_INTERVAL_S
        return self._line is not None

    def call(self, tasks: pa.Table, timeout_s: float) -> Iterator[pa.RecordBatch]:
        """Yield the function's results for these rows, as they come; the worker must be ready.

        Raises SparkError where the worker is gone, SlowWorkerError where it stands still for half a
        minute or gives nothing for `timeout_s`, and what failed in it as Spark would.
        """
        line, over = self._line, False
        try:
            if line is None:
                raise ConnectionError("it was released")
            line.set_timeout(min(timeout_s, _HEARTBEAT_TIMEOUT_S))
            (batch,) = tasks.combine_chunks().to_batches()
            line.send(CALL, memoryview(batch.serialize()))
            while not over:
                kind, data = _next_message(line, timeout_s)
                over = kind in (END, FAILED)
                if kind == FAILED:
                    raise PySparkException(data.decode(errors="replace"))
                if kind == BATCH:
                    yield pa.ipc.read_record_batch(pa.py_buffer(data), self._schemas[1])
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._jobs[-1].cancel()  # it doesn't see that it is let go, and holds a core
                raise SlowWorkerError(
                    f"the persistent Spark worker is too slow: {error}"
                ) from error
            raise SparkError(
                f"the persistent Spark worker is gone: {error}", transient=True
            ) from error
        finally:
            if not over:
                self.release()

    def release(self) -> None:
        """Release the worker: its job ends, and its core is free.

        One that is to come isn't waited for any longer.
        """
        self._is_released = True
        line, self._line = self._line, None
        if line is not None:
            line.close()
        if (starting := self._starting) is not None:
            starting.end()

    def _start_worker(self, core_timeout_s: float | None) -> WorkerConnection | None:
        """Return the connection to a worker. Raises as `is_ready`.

        Where this machine has no socket, address or thread for it none comes, as if Spark had no
        core.
        """
        try:
            return self._begin(core_timeout_s)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not str(error).startswith(_NO_THREAD):
                raise
            log.warning(
                "no persistent Spark worker can start, every window is a Spark job of its own: %s",
                error,
            )
            return None

    def _begin(self, core_timeout_s: float | None) -> WorkerConnection | None:
        """Begin the job, or take up the one that waits for a core, and wait for its worker.

        The job before is over first, usually in no time: so Spark has its Python process to give,
        and needs no new one, which would load all it needs for a second of a core.
        """
        starting, self._starting = self._starting, None
        # a worker that came between two calls, and got no answer, has ended without a failure
        missed = starting is not None and starting.job.is_over and not starting.job.failure
        if starting is not None and (missed or self._is_released):
            starting.end()
            starting = None
        follows = self._aged_out > 0 and core_timeout_s is not None
        if starting is None:
            if follows and self._is_predecessor_ending():
                raise NoFreeCore
            starting = self._new_start()
        timeout_s = _START_TIMEOUT_S if core_timeout_s is None else 0 if follows else core_timeout_s
        line = self._accept(starting, starting.job.began + timeout_s)
        if line is not None:
            starting.listener.close()
            self._logged = False
            self._jobs.append(starting.job)
            return line
        self._lacked_core = not (starting.job.is_over or self._is_released)
        if self._lacked_core and core_timeout_s is not None:
            self._starting = starting
            if self._is_released:  # meanwhile, by another thread, which may not have seen it
                starting.end()
            raise NoFreeCore
        starting.end()
        if not (self._logged or self._is_released):
            self._logged = True
            log.warning(
                "no persistent Spark worker connected to %s:%d (%s): each window runs as a Spark"
                " job",
                *starting.address,
                starting.job.failure or f"within {timeout_s:.0f} s",
            )
        return None

    def _is_predecessor_ending(self) -> bool:
        if not self._jobs or self._jobs[-1].is_over:
            return False
        return time.monotonic() < self._aged_out + _SHUTDOWN_TIMEOUT_S

    def _new_start(self) -> _StartingWorker:
        self._is_released = False
        if self._jobs:
            self._jobs[-1].over.wait(_SHUTDOWN_TIMEOUT_S)
        self._cancel_stalled()
        reachability.check_reachable(self._server)  # pyspark tries for seconds
        return _StartingWorker(self._spark, self._server, self._function, self._schemas)

    def _accept(self, starting: _StartingWorker, deadline: float) -> WorkerConnection | None:
        """Return the connection of a worker that comes by `deadline` (monotonic clock, s).

        The job is looked at once at least. None, too, once the job is over or is released. Whatever
        is raised ends the job.
        """
        try:
            while not (starting.job.is_over or self._is_released):
                left_s = deadline - time.monotonic()
                try:
                    if (line := starting.accept(min(max(left_s, 0.001), 0.1))) is not None:
                        return line
                except TimeoutError:
                    reachability.check_reachable(self._server)
                if left_s <= 0:
                    break
        except BaseException:
            starting.end()
            raise
        return None

    def _cancel_stalled(self) -> None:
        """Cancel the jobs of workers that stand still, and so don't see that they were released.

        Spark kills such a worker, and has its core back.
        """
        self._jobs = [job for job in self._jobs if not job.is_over]
        for job in self._jobs:
            if time.monotonic() > job.began + _MAX_LIFETIME_S + IDLE_TIMEOUT_S:
                job.cancel()


class _StartingWorker:
    """A job whose worker is to come, and the socket that it comes to."""

    def __init__(
        self,
        spark: Any,
        server: Spark,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schemas: tuple[pa.Schema, pa.Schema],
    ) -> None:
        self._key = secrets.token_bytes(32)
        # What goes to Spark by TLS must not come back in the clear.
        self._certificate = CallerCertificate() if server.uses_tls else None
        self.listener = socket.create_server((local_address_towards(server.remote), 0))
        try:
            host, port = self.address = self.listener.getsockname()[:2]
            pem = self._certificate.pem if self._certificate is not None else ""
            self.job = _WorkerJob(spark, ServeCalls(function, *schemas, host, port, self._key, pem))
        except BaseException:
            self.listener.close()
            raise

    def accept(self, timeout_s: float) -> WorkerConnection | None:
        """Return the worker's connection; None if another process connected.

        Raises TimeoutError.
        """
        self.listener.settimeout(timeout_s)
        return _authenticate(self.listener.accept()[0], self._key, self._certificate)

    def end(self) -> None:
        """Close the socket and cancel the job."""
        self.listener.close()
        self.job.cancel()


class _WorkerJob:
    """The long Spark job, waited for in a thread of its own."""

    def __init__(self, spark: Any, attend: ServeCalls) -> None:
        self._spark = spark
        self._tag = f"persistent-{next(_numbers)}-{secrets.token_hex(4)}"
        self._frame = TaskFrame(spark, attend, TEXTS, TEXTS).of(pa.table({"text": ["stand by"]}))
        self.began = time.monotonic()
        self.over = threading.Event()
        self.failure = ""
        threading.Thread(target=self._run, name="persistent-worker", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    def cancel(self) -> None:
        """Interrupt the job, as its worker is no longer needed."""
        if not self.is_over:
            with contextlib.suppress(Exception):
                self._spark.interruptTag(self._tag)

    def _run(self) -> None:
        client = self._spark.client
        try:
            with tagged(self._spark, self._tag):
                for _ in client.to_table_as_iterator(
                    self._frame._plan.to_proto(client), self._frame._plan.observations
                ):
                    pass
        except Exception as error:  # the next caller finds no worker
            report = parse_worker_error(str(error))
            self.failure = (
                str(report or error).splitlines()[0][:300] if str(error) else type(error).__name__
            )
        finally:
            self.over.set()


def local_address_towards(remote: str) -> str:
    """Return the address of this host by which a Spark Connect server's host finds it.

    `remote`: ``sc://host:port``.
    """
    at = urlsplit(remote)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((at.hostname or "127.0.0.1", at.port or 15002))
        except OSError:
            return socket.gethostbyname(socket.gethostname())
        return str(probe.getsockname()[0])


def _next_message(line: WorkerConnection, timeout_s: float) -> tuple[bytes, bytearray]:
    """Return the worker's next message, ignoring heartbeats.

    Raises TimeoutError if only heartbeats arrive for `timeout_s`.
    """
    asked = time.monotonic()
    while True:
        kind, data = line.receive()
        if kind != ALIVE:
            return kind, data
        if time.monotonic() > asked + timeout_s:
            raise TimeoutError(f"it returned nothing within {timeout_s:.0f} s")


def _authenticate(
    connection: socket.socket, key: bytes, certificate: CallerCertificate | None
) -> WorkerConnection | None:
    """Return the connection to the worker; None if another process connected."""
    line: WorkerConnection | None = None
    try:
        line = WorkerConnection(_encrypted(connection, certificate), _HANDSHAKE_TIMEOUT_S)
        line.prove(key, b"caller", b"worker")
    except OSError:
        if line is not None:
            line.close()
        return None
    return line


def _encrypted(
    connection: socket.socket, certificate: CallerCertificate | None
) -> socket.socket | TlsSocket:
    if certificate is None:
        return connection
    return TlsSocket(connection, certificate.context, _HANDSHAKE_TIMEOUT_S, server_side=True)
