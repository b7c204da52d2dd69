"""Write binlogs to pumps as TiDB does: a Prewrite to any pump, its end to the same one.

The end is a Commit or Rollback. The rules are those of TiDB's own client, with two differences in
favour of not losing anything: while no pump is available a Prewrite is retried until its time is
over, and a Commit that can't be delivered is reported.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc

from sluice.errors import SluiceError
from sluice.tidb import pb
from sluice.tidb.etcd import EtcdClient, Registry
from sluice.tidb.pd import PDClient
from sluice.tidb.pumps.pool import PumpNode, PumpPool
from sluice.tidb.rpc import TLS, describe, status

_RETRY_INTERVAL_S = 0.1
_MAX_RETRY_INTERVAL_S = 1.0
# The pump looked at the binlog and refuses it: another attempt gets the same answer.
_REFUSED = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT}


class PumpWriteError(SluiceError):
    """A binlog was not accepted.

    The message names the transaction, the pump and the last failure.

    A Prewrite may still have arrived at a pump that lost its answer. It then counts as never
    finished, and the pump gets its outcome from TiKV.
    """

    transient = True
    hint = "start a pump, or look into the log of the one it names"


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """The time-outs of a PumpClient, in seconds."""

    write_s: float = 15.0
    """Bounds an attempt, and how long a Prewrite is tried on ever more pumps."""
    finish_s: float = 600.0
    """The time for which a Commit or Rollback is tried on its pump."""
    probe_s: float = 30.0
    """The time between probes of pumps that failed."""


class _PendingWrite:
    """A binlog on its way."""

    __slots__ = (
        "attempts",
        "chances",
        "failure",
        "future",
        "prewrite",
        "request",
        "start_ts",
        "started",
    )

    def __init__(self, start_ts: int, request: bytes, *, prewrite: bool) -> None:
        self.start_ts = start_ts
        self.request = request
        self.prewrite = prewrite
        self.future: Future[str] = Future()
        self.future.set_running_or_notify_cancel()  # it can't be taken back
        self.started = time.monotonic()
        self.attempts = 0
        # of the last round, over all pumps that are online
        self.chances: list[PumpNode] | None = None
        self.failure = "no available pump to write binlog"


class PumpClient:
    """Thread-safe.

    Needs at least one registered pump, else PumpWriteError.

    `source`: PD's client URLs, or a Registry (then `cluster_id` has to be given). `strategy`:
    "range" (in turn), "hash" (by start_ts) or "score" (in proportion to the registry's scores).
    """

    def __init__(
        self,
        source: Sequence[str] | str | Registry,
        cluster_id: int | None = None,
        *,
        strategy: str = "range",
        times: WriteTimes = WriteTimes(),
        tls: TLS | None = None,
    ) -> None:
        self._etcd: EtcdClient | None = None
        if isinstance(source, Registry):
            if cluster_id is None:
                raise ValueError("a PumpClient over a Registry needs the cluster id")
            registry = source
        else:
            if cluster_id is None:
                with PDClient(source, tls=tls) as pd:
                    cluster_id = pd.cluster_id
            self._etcd = EtcdClient(source, tls=tls)
            registry = Registry(self._etcd)
        self._cluster_id = cluster_id
        self._times = times
        self._lock = threading.Lock()
        self._pending: set[_PendingWrite] = set()
        self._owners: dict[int, PumpNode] = {}  # start_ts of a Prewrite -> the pump that has it
        self._closed = False
        self._later = _DelayedCalls()
        self._pool = PumpPool(registry, cluster_id, strategy, times.probe_s, tls)
        if not self._pool.size():
            self.close()
            raise PumpWriteError("no pump is registered in PD; start a pump before writing binlogs")

    def prewrite(self, start_ts: int, payload: bytes) -> str:
        """Write a Prewrite binlog (a serialised binlog.Binlog), and return the pump's node id.

        It is durable then.
        """
        return self.prewrite_async(start_ts, payload).result()

    def finish(self, start_ts: int, payload: bytes) -> str:
        """Write the Commit or Rollback binlog of a transaction to the pump that has its Prewrite.

        PumpWriteError at once if no Prewrite with that start_ts was acknowledged to this client, or
        was finished already.
        """
        return self.finish_async(start_ts, payload).result()

    def prewrite_async(self, start_ts: int, payload: bytes) -> Future[str]:
        """Start `prewrite`, and return its future.

        Callbacks of the future run on grpc's threads: they must not block.
        """
        write = self._begin(start_ts, payload, prewrite=True)
        if not write.future.done():
            self._try_prewrite(write)
        return write.future

    def finish_async(self, start_ts: int, payload: bytes) -> Future[str]:
        """Start `finish`, and return its future. Only once the Prewrite's future is done."""
        with self._lock:
            owner = self._owners.get(start_ts)
        write = self._begin(start_ts, payload, prewrite=False)
        if write.future.done():
            return write.future
        if owner is None:
            self._end(
                write,
                error=(
                    f"transaction {start_ts}: no pump has acknowledged a Prewrite of it to this"
                    " client"
                ),
            )
        else:
            self._send(write, owner)
        return write.future

    def available_pumps(self) -> list[str]:
        """Return node ids of the pumps that take Prewrites now."""
        return self._pool.available()

    def close(self) -> None:
        """Close the connections. Binlogs still on their way fail with PumpWriteError."""
        with self._lock:
            self._closed = True
            pending = list(self._pending)
        self._later.close()
        self._pool.close()
        for write in pending:
            self._end(write, error=f"transaction {write.start_ts}: the pump client was closed")
        if self._etcd is not None:
            self._etcd.close()

    def __enter__(self) -> PumpClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _begin(self, start_ts: int, payload: bytes, *, prewrite: bool) -> _PendingWrite:
        request = pb.pump.WriteBinlogReq(
            clusterID=self._cluster_id, payload=payload
        ).SerializeToString()
        write = _PendingWrite(start_ts, request, prewrite=prewrite)
        with self._lock:
            closed = self._closed
            self._pending.add(write)
        if closed:
            self._end(write, error=f"transaction {start_ts}: the pump client is closed")
        return write

    def _end(self, write: _PendingWrite, node: PumpNode | None = None, error: str = "") -> None:
        with self._lock:
            if write not in self._pending:
                return
            self._pending.discard(write)
            if not write.prewrite:
                self._owners.pop(write.start_ts, None)
            elif node is not None:
                self._owners[write.start_ts] = node
        if node is not None:
            write.future.set_result(node.node_id)
        else:
            write.future.set_exception(PumpWriteError(error))

    def _try_prewrite(self, write: _PendingWrite) -> None:
        node = self._pool.pick(write.start_ts, write.attempts)
        if node is None:
            self._last_round(write)
        else:
            self._send(write, node)

    def _last_round(self, write: _PendingWrite) -> None:
        """Try each pump once that is online, also those that failed too often."""
        if write.chances is None:
            write.chances = self._pool.online()
        if write.chances:
            self._send(write, write.chances.pop())
            return
        write.chances = None
        if time.monotonic() - write.started < self._times.write_s:
            self._again(write, self._try_prewrite)
        else:
            self._end(write, error=f"write binlog failed, the last error: {write.failure}")

    def _again(self, write: _PendingWrite, action: Callable[[_PendingWrite], None]) -> None:
        self._later.run(
            min(_MAX_RETRY_INTERVAL_S, _RETRY_INTERVAL_S * 2 ** min(write.attempts, 5)),
            lambda: action(write),
        )
        write.attempts += 1

    def _send(self, write: _PendingWrite, node: PumpNode) -> None:
        try:
            call = node.write(write.request, self._times.write_s)
        except ValueError:  # the connection is being replaced or the client closed
            self._failed(write, node, "the connection was closed", None)
            return
        call.add_done_callback(lambda done: self._answered(write, node, done))

    def _answered(self, write: _PendingWrite, node: PumpNode, call: Any) -> None:
        try:
            error = None if call.cancelled() else call.exception()
            if call.cancelled():
                self._failed(write, node, "the connection was closed", None)
            elif error is not None:
                self._failed(write, node, describe(error), status(error))
            elif call.result().errmsg:
                self._failed(write, node, call.result().errmsg, None)
            else:
                self._pool.succeeded(node)
                self._end(write, node)
        except (
            Exception
        ) as error:  # grpc would only log it, and the waiting thread would wait for ever
            self._end(
                write, error=f"transaction {write.start_ts} to pump {node.node_id}: {error!r}"
            )

    def _failed(
        self, write: _PendingWrite, node: PumpNode, words: str, code: grpc.StatusCode | None
    ) -> None:
        kind = "Prewrite" if write.prewrite else "Commit or Rollback"
        write.failure = (
            f"{kind} of transaction {write.start_ts} to pump {node.node_id} ({node.status.host}):"
            f" {words}"
        )
        if self._closed:
            return  # close() ends it
        if code in _REFUSED:
            self._end(write, error=write.failure)
            return
        self._pool.failed(node)
        waited = time.monotonic() - write.started
        if not write.prewrite:
            if waited < self._times.finish_s:
                self._again(write, lambda again: self._send(again, node))
            else:
                self._end(write, error=f"gave up after {self._times.finish_s:g} s: {write.failure}")
        elif write.chances is not None or (
            waited >= self._times.write_s and write.attempts >= self._pool.size()
        ):
            self._last_round(write)
        else:
            self._again(write, self._try_prewrite)


class _DelayedCalls:
    """Run functions after a delay, on one thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._wakeup = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def run(self, delay_s: float, action: Callable[[], None]) -> None:
        with self._wakeup:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="pump-retry", daemon=True)
                self._thread.start()
            heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._count), action))
            self._wakeup.notify()

    def close(self) -> None:
        with self._wakeup:
            self._closed = True
            self._heap.clear()
            self._wakeup.notify()

    def _loop(self) -> None:
        while True:
            with self._wakeup:
                while not self._closed and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._wakeup.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._closed:
                    return
                action = heapq.heappop(self._heap)[2]
            action()
