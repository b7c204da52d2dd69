"""The grpcio server behind the port: PullBinlogs, sluice.Window, and WriteBinlog for connections that mix calls.

It listens on a Unix socket in the data directory only; the front passes connections on to it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from pump_service.calls.window_service import CallRefusedError, WindowService
from pump_service.cluster import TimeLimit
from pump_service.ingest import Ingest, Refused
from pump_service.metrics import BatchHistogram
from pump_service.store import Store, failpoints
from pump_service.store.errors import StoreError
from upstream import pb

_log = logging.getLogger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")

_THREADS = 512  # threads are made when needed
_WRITE_TIMEOUT_S = 600.0
MAX_GZIP_READERS = 16
"""readers of compressed streams at a time"""
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    # of a connection; a client that needs more at once opens another
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Clients may ping as often as they like; the front has the limits.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
]


class PumpRPC:
    """`start(address)` listens on a grpc `unix:` address, `stop(grace_s)` ends all streams."""

    def __init__(
        self,
        cluster_id: int,
        store: Store,
        ingest: Ingest,
        latency: BatchHistogram,
        time_limit: TimeLimit,
    ) -> None:
        self._cluster_id = cluster_id
        self._store = store
        self._ingest = ingest
        self._latency = latency
        self._stopping = threading.Event()
        self._admitting = threading.Lock()
        self._pulls: set[threading.Event] = set()
        self._pull_slots = threading.BoundedSemaphore(MAX_GZIP_READERS)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="pump-rpc")
        self._server = grpc.server(self._pool, options=_OPTIONS)
        pump = {
            "WriteBinlog": grpc.unary_unary_rpc_method_handler(self._write),
            "PullBinlogs": grpc.unary_stream_rpc_method_handler(
                self._pull,
                pb.pump.PullBinlogReq.FromString,
                pb.pump.PullBinlogResp.SerializeToString,
            ),
        }
        handlers = [grpc.method_handlers_generic_handler("binlog.Pump", pump)]
        self.windows: WindowService | None = None
        """What answers sluice.Window."""
        if not failpoints.due("rpc.no_window"):  # tests: serve what an original Pump does, and no more
            # Asked in the place of Sluice's pipeline, which serves no port: it plans no window without listing the
            # pumps first.
            notify = {"Notify": grpc.unary_unary_rpc_method_handler(lambda request, context: b"")}
            handlers.append(grpc.method_handlers_generic_handler("binlog.Cistern", notify))
            service = self.windows = WindowService(cluster_id, store, time_limit, self._stopping)
            window = {
                "Bounds": grpc.unary_unary_rpc_method_handler(
                    _refusing(service.bounds),
                    pb.window.BoundsRequest.FromString,
                    pb.window.BoundsResponse.SerializeToString,
                ),
                "Await": grpc.unary_unary_rpc_method_handler(
                    _refusing(service.await_newer),
                    pb.window.AwaitRequest.FromString,
                    pb.window.AwaitResponse.SerializeToString,
                ),
                "Read": grpc.unary_stream_rpc_method_handler(
                    _reads(service),
                    pb.window.ReadRequest.FromString,
                    pb.window.ReadResponse.SerializeToString,
                ),
            }
            handlers.append(grpc.method_handlers_generic_handler("sluice.Window", window))
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def start(self, address: str) -> None:
        """Begin to serve."""
        self._server.add_insecure_port(address)
        self._server.start()

    def settle(self) -> None:
        """Wait until what has been admitted is with the store."""
        with self._admitting:
            pass

    def stop_pulls(self) -> None:
        """End the streams of all readers, so that they come back when the pump does."""
        self._stopping.set()
        for stop in list(self._pulls):
            stop.set()

    def stop(self, grace_s: float) -> None:
        """No new calls; those under way get `grace_s` seconds."""
        self.stop_pulls()
        self._server.stop(grace_s).wait(grace_s + 1)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        began = time.monotonic()
        durable = threading.Event()
        verdict: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            verdict.append(error)
            durable.set()

        try:
            with self._admitting:
                record = self._ingest.admit(message)
                if record is not None:
                    self._ingest.submit([record], done)
        except Refused as refusal:
            self._ingest.refused()
            context.abort(grpc.StatusCode.UNKNOWN, refusal.text)
        if record is None:
            self._ingest.observe(time.monotonic() - began, 1, ok=True)
            return b""
        in_time = durable.wait(_WRITE_TIMEOUT_S)
        error = verdict[0] if in_time else TimeoutError(f"the record was not durable after {_WRITE_TIMEOUT_S:.0f} s")
        self._ingest.observe(time.monotonic() - began, 1, ok=error is None)
        if error is not None:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return b""

    def _pull(self, request: pb.pump.PullBinlogReq, context: grpc.ServicerContext) -> Iterator[Any]:
        began = time.monotonic()
        if request.clusterID != self._cluster_id:
            self._latency.observe(time.monotonic() - began, 1, ("PullBinlogs", "fail"))
            context.abort(
                grpc.StatusCode.UNKNOWN, f"cluster ID are mismatch, {request.clusterID} vs {self._cluster_id}"
            )
        if not self._pull_slots.acquire(blocking=False):
            self._latency.observe(0.0, 1, ("PullBinlogs", "fail"))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"too many readers: {MAX_GZIP_READERS} with gzip")
        try:
            yield from self._pulled(request, context)
        finally:
            self._pull_slots.release()

    def _pulled(self, request: pb.pump.PullBinlogReq, context: grpc.ServicerContext) -> Iterator[Any]:
        # A connection comes here because its first call asked for gzip (or is a Sluice reader's, which knows it): all
        # other readers are served by the lane.
        context.set_compression(grpc.Compression.Gzip)
        stop = threading.Event()
        self._pulls.add(stop)
        if not context.add_callback(stop.set) or self._stopping.is_set():
            stop.set()
        peer = context.peer()
        _log.info("a reader (%s) pulls binlogs after commit ts %d", peer, request.startFrom.offset)
        try:
            for entity in self._store.pull(request.startFrom.offset, stop):
                sent = time.monotonic()
                response = pb.pump.PullBinlogResp()
                response.entity.pos.SetInParent()
                response.entity.payload = entity.payload
                response.entity.meta.startTs = entity.start_ts
                response.entity.meta.commitTs = entity.commit_ts
                yield response
                self._latency.observe(time.monotonic() - sent, 1, ("PullBinlogs", "succ"))
        except StoreError as error:
            self._latency.observe(0.0, 1, ("PullBinlogs", "fail"))
            _log.error("pulling binlogs after %d failed: %s", request.startFrom.offset, error)
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        finally:
            self._pulls.discard(stop)
            _log.info("the reader (%s) is gone", peer)
        if self._stopping.is_set() and context.is_active():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the pump is shutting down")


def _refusing(answer: Callable[[Request], Response]) -> Callable[[Request, grpc.ServicerContext], Response]:
    """A handler for grpcio."""

    def handle(request: Request, context: grpc.ServicerContext) -> Response:
        try:
            return answer(request)
        except CallRefusedError as refused:
            context.abort(refused.code, str(refused))
            raise  # never: abort does

    return handle


def _reads(service: WindowService) -> Callable[[pb.window.ReadRequest, grpc.ServicerContext], Iterator[Any]]:
    """Read for grpcio."""

    def handle(request: pb.window.ReadRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            for chunk in service.read(request, context):
                yield pb.window.ReadResponse(chunk=bytes(chunk))
        except CallRefusedError as refused:
            context.abort(refused.code, str(refused))

    return handle
