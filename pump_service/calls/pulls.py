"""PullBinlogs on a lane connection: what the store yields goes out in batches, not message by message.

A thread reads ahead, and compresses where the client asked for gzip. The loop sends all that has gathered as the
reader's windows allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable

from google.protobuf.message import DecodeError

from sluice.pump_service import kernel
from sluice.pump_service.grpc_fastpath import ClientCalls
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.metrics import BatchHistogram
from sluice.pump_service.store import Store, StoreError
from sluice.tidb import pb

_log = logging.getLogger(__name__)

_READ_AHEAD_BYTES = 1 << 18  # bytes
MAX_READERS = 32
"""readers at a time; a thread and a few MiB each"""
MAX_READERS_PER_HOST = 16
"""of them those from one address"""
STARTS_PER_S_PER_HOST = 5.0
"""readers an address may begin in a second, after as many at once as it may have"""
_PREFIX_BYTES = 5  # of a gRPC message
_GZIP_HEADERS = (*f.RESPONSE_HEADERS, (b"grpc-encoding", b"gzip"))
_GZIP_LEVEL = 6  # what gRPC's own libraries take


class PullBinlogsCalls:
    """`run` answers one call; `stop` ends all of them."""

    def __init__(self, cluster_id: int, store: Store, latency: BatchHistogram) -> None:
        self._cluster_id = cluster_id
        self._store = store
        self._latency = latency
        self._stopping = False
        self._running: set[_ReadAhead] = set()
        self._readers: Counter[str] = Counter()  # by host, until their threads have ended
        self._starts: dict[str, tuple[float, float]] = {}  # by host: how many it may begin, and as of when

    def stop(self) -> None:
        """End the streams of all readers, so that they come back when the pump does. Any thread."""
        self._stopping = True
        for reader in list(self._running):
            reader.stop()

    async def run(self, lane: ClientCalls, stream: int, message: bytes, *, gzipped: bool = False) -> None:
        """Answer the stream until its client or the pump goes away; `gzipped`: with compressed messages."""
        sender = lane.sender
        try:
            request = pb.pump.PullBinlogReq.FromString(message)
        except DecodeError:
            sender.out.append(f.error_reply(stream, f.GRPC_INTERNAL, "the request is no PullBinlogReq"))
            return
        if request.clusterID != self._cluster_id:
            self._latency.observe(0.0, 1, ("PullBinlogs", "fail"))
            text = f"cluster ID are mismatch, {request.clusterID} vs {self._cluster_id}"
            sender.out.append(f.error_reply(stream, f.GRPC_UNKNOWN, text))
            return
        host = lane.host
        if not self._may_begin(host):
            self._latency.observe(0.0, 1, ("PullBinlogs", "fail"))
            text = (
                f"too many readers: {self._readers[host]} from this address, {self._readers.total()} in all, or begun"
                " too fast"
            )
            sender.out.append(f.error_reply(stream, f.GRPC_RESOURCE_EXHAUSTED, text))
            return
        after = request.startFrom.offset
        headers = _GZIP_HEADERS if gzipped else f.RESPONSE_HEADERS
        _log.info("a reader (%s) pulls binlogs after commit ts %d", lane.peer, after)
        self._readers[host] += 1
        try:
            reader = _ReadAhead(
                self._store, after, asyncio.get_running_loop(), lambda: self._gone(host), gzipped=gzipped
            )
        except RuntimeError:  # the system gives no thread
            self._gone(host)
            raise
        self._running.add(reader)
        if self._stopping:
            reader.stop()
        try:
            sender.out.append(f.header_frames(stream, headers, end_stream=False))
            lane.flush()
            while batch := await reader.take():
                began = time.monotonic()
                sender.queue(stream, b"".join(batch))
                lane.flush()
                await lane.sent(stream)
                self._latency.observe(time.monotonic() - began, len(batch), ("PullBinlogs", "succ"))
            self._end(lane, stream, reader.failure, after)
        finally:
            reader.stop()
            self._running.discard(reader)
            _log.info("the reader (%s) is gone", lane.peer)

    def _may_begin(self, host: str) -> bool:
        if self._readers.total() >= MAX_READERS or self._readers[host] >= MAX_READERS_PER_HOST:
            return False
        now = time.monotonic()
        left, since = self._starts.get(host, (MAX_READERS_PER_HOST, now))
        left = min(left + (now - since) * STARTS_PER_S_PER_HOST, MAX_READERS_PER_HOST)
        if left < 1:
            return False
        if len(self._starts) > 1000:  # addresses that may begin as many as any
            self._starts.clear()
        self._starts[host] = (left - 1, now)
        return True

    def _gone(self, host: str) -> None:
        self._readers[host] -= 1
        if not self._readers[host]:
            del self._readers[host]

    def _end(self, lane: ClientCalls, stream: int, failure: Exception | None, after: int) -> None:
        status, text = f.GRPC_UNAVAILABLE, "the pump is shutting down"
        if failure is not None:
            status, text = f.GRPC_UNKNOWN, str(failure)
            _log.error("pulling binlogs after %d failed: %s", after, failure)
            self._latency.observe(0.0, 1, ("PullBinlogs", "fail"))
        lane.sender.finish(stream, f.header_frames(stream, f.status_trailers(status, text), end_stream=True))


class _ReadAhead:
    """A thread that reads the store's stream, at most `_READ_AHEAD_BYTES` bytes (or one message) ahead of the loop."""

    def __init__(
        self, store: Store, after: int, loop: asyncio.AbstractEventLoop, gone: Callable[[], None], *, gzipped: bool
    ) -> None:
        """`gone` is called in the loop's thread when the thread has ended."""
        self._gzipped = gzipped
        self.failure: Exception | None = None
        self._store = store
        self._after = after
        self._loop = loop
        self._gone = gone
        self._ready = asyncio.Event()
        self._parts: deque[bytes] = deque()  # messages with their gRPC prefix
        self._taken = 0
        self._waits = False
        self._room = threading.Condition()
        self._stop = threading.Event()
        self._ended = False
        self._woken = False
        threading.Thread(target=self._read, name="pump-pull", daemon=True).start()

    def stop(self) -> None:
        """End the thread; `take` gives what is there and then nothing."""
        self._stop.set()
        with self._room:
            self._room.notify()

    async def take(self) -> list[bytes]:
        """All that is ready, waiting for the first; empty at the end."""
        while True:
            self._ready.clear()
            self._woken = False
            ended = self._ended  # looked at first: what came before the end is still there
            parts = [self._parts.popleft() for _ in range(len(self._parts))]
            if parts:
                self._taken += sum(map(len, parts))
                if self._waits:
                    with self._room:
                        self._room.notify()
            if parts or ended:
                return parts
            await self._ready.wait()

    def _wait_for_room(self, given: int) -> None:
        with self._room:
            self._waits = True
            while given - self._taken > _READ_AHEAD_BYTES and not self._stop.is_set():
                self._room.wait(0.1)
            self._waits = False

    def _read(self) -> None:
        given = 0  # bytes; how many of them are taken only the loop writes
        try:
            for entity in self._store.pull(self._after, self._stop):
                message = kernel.pull_message(entity.payload, entity.start_ts, entity.commit_ts)
                if self._gzipped:
                    message = _compressed(message)
                if given - self._taken > _READ_AHEAD_BYTES:
                    self._wait_for_room(given)
                self._parts.append(message)
                given += len(message)
                self._wake()
        except (StoreError, OSError, ValueError) as error:
            self.failure = error
        finally:
            self._ended = True
            self._woken = False
            self._wake()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._gone)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._ready.set)
            except RuntimeError:  # the loop is closed: the pump has left
                self._stop.set()


def _compressed(message: bytes) -> bytes:
    """Return a gRPC message with its prefix, compressed."""
    packed = zlib.compress(memoryview(message)[_PREFIX_BYTES:], _GZIP_LEVEL, wbits=31)
    return b"\1" + len(packed).to_bytes(4, "big") + packed
