"""The worker's side of `sluice.etl.spark.persistent_worker`.

It is a task that serves the process that began it, until that closes the connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from sluice.etl.spark._line import ALIVE, BATCH, CALL, END, FAILED, WorkerConnection
from sluice.etl.spark._line_tls import TlsSocket, trusting
from sluice.etl.spark.errors import report_to_client
from sluice.etl.spark.worker_tuning import TEXTS, freeze_gc

__all__ = ["IDLE_TIMEOUT_S", "ServeCalls"]

IDLE_TIMEOUT_S = 75.0
"""A worker without a call for this time ends, and gives its core back."""
_CONNECT_TIMEOUT_S = 5.0
_HEARTBEAT_INTERVAL_S = 5.0
# by a caller that is busy downstream: an index of a large table takes its time
_DELIVERY_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class ServeCalls:
    """Serve calls in one of Spark's Python workers.

    It connects to the process at `host` and `port`, which knows the key, and maps by `function` the
    batches that come from there. It ends when that process closes the connection, is gone, or has
    been silent for IDLE_TIMEOUT_S.
    """

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    tasks: pa.Schema
    results: pa.Schema
    host: str
    port: int
    key: bytes
    certificate: str = ""
    """The PEM certificate of that process; without one the connection isn't encrypted."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        with report_to_client():
            line = WorkerConnection(self._connect(), _CONNECT_TIMEOUT_S)
        with contextlib.closing(line), contextlib.suppress(OSError):
            line.prove(self.key, b"worker", b"caller")
            with _Heartbeat(line) as pulse:
                self._serve(line, pulse)
        freeze_gc()
        yield pa.record_batch([pa.array([], pa.string())], schema=TEXTS)

    def _connect(self) -> socket.socket | TlsSocket:
        connection = socket.create_connection((self.host, self.port), _CONNECT_TIMEOUT_S)
        if not self.certificate:
            return connection
        context = trusting(self.certificate)
        return TlsSocket(connection, context, _CONNECT_TIMEOUT_S, server_side=False)

    def _serve(self, line: WorkerConnection, pulse: _Heartbeat) -> None:
        while True:
            line.set_timeout(IDLE_TIMEOUT_S)
            kind, data = line.receive()
            if kind != CALL:
                raise ConnectionError(f"{kind!r} is no call")
            line.set_timeout(_DELIVERY_TIMEOUT_S)
            with pulse.working():
                for answer, content in self._answers(data):
                    line.send(answer, content)

    def _answers(self, data: bytearray) -> Iterator[tuple[bytes, memoryview | bytes]]:
        """Yield the messages that answer a call's batch.

        The function's OSError is reported like any other: only the connection's own end it.
        """
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self.tasks)
            for result in self.function(iter((batch,))):
                if not result.schema.equals(self.results):
                    result = result.cast(self.results)
                yield BATCH, memoryview(result.serialize())
        except Exception as error:
            yield FAILED, f"{type(error).__name__}: {error}".encode()
        else:
            yield END, b""


class _Heartbeat:
    """A thread that sends heartbeats to the caller of a long call, every few seconds.

    A worker that stands still sends none.
    """

    def __init__(self, line: WorkerConnection) -> None:
        self._line = line
        self._stopped = threading.Event()
        self._is_working = False
        self._thread = threading.Thread(
            target=self._run, name="persistent-worker-heartbeat", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Send heartbeats while a call is answered."""
        self._is_working = True
        try:
            yield
        finally:
            self._is_working = False

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while not self._stopped.wait(_HEARTBEAT_INTERVAL_S):
                if self._is_working:
                    self._line.send(ALIVE)
