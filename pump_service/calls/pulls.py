"""Answer PullBinlogs on a fast-path connection, sending messages in batches.

A thread reads ahead, and compresses if the client asked for gzip. The event loop sends all messages
that are ready, as the reader's flow-control windows allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from google.protobuf.message import DecodeError

from sluice.pump_service import kernel
from sluice.pump_service.grpc_fastpath import ClientCalls
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.metrics import BatchHistogram
from sluice.pump_service.store import Store, StoreError
from sluice.tidb import pb

_log = logging.getLogger(__name__)

_READ_AHEAD_BYTES = 1 << 18
MAX_READERS = 32
"""Readers at a time; each takes a thread and a few MiB."""
MAX_READERS_PER_HOST = 16
"""Readers at a time from one address."""
STARTS_PER_S_PER_HOST = 5.0
"""Readers that one address may start per second, after a burst of MAX_READERS_PER_HOST."""
_START_DELAY_S = 0.1
"""How long a call lasts before its reader starts.

A client that resets calls at once starts none.
"""
_PREFIX_BYTES = 5  # compressed flag and length of a gRPC message
_GZIP_HEADERS = (*f.RESPONSE_HEADERS, (b"grpc-encoding", b"gzip"))
_GZIP_LEVEL = 6  # the default of gRPC's own libraries


class PullBinlogsCalls:
    """Answer PullBinlogs calls: `run` answers one, `stop` ends all."""

    def __init__(self, cluster_id: int, store: Store, latency: BatchHistogram) -> None:
        self._cluster_id = cluster_id
        self._store = store
        self._latency = latency
        self._stopping = False
        self._running: set[_ReadAhead] = set()
        self._readers: Counter[str] = Counter()  # by host, until their threads have ended
        self._starts: dict[str, tuple[float, float]] = {}  # by host: starts left, and since when

    def stop(self) -> None:
        """End all readers' streams, so that they return when the pump does.

        Any thread may call it.
        """
        self._stopping = True
        for reader in list(self._running):
            reader.stop()

    async def run(
        self, lane: ClientCalls, stream: int, message: bytes, *, gzipped: bool = False
    ) -> None:
        """Answer the stream until its client or the pump goes away.

        `gzipped` compresses the messages.
        """
        sender = lane.sender
        try:
            request = pb.pump.PullBinlogReq.FromString(message)
        except DecodeError:
            sender.out.append(
                f.error_reply(stream, f.GRPC_INTERNAL, "the request is no PullBinlogReq")
            )
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
                f"too many readers: {self._readers[host]} from this address,"
                f" {self._readers.total()} in all, or begun too fast"
            )
            sender.out.append(f.error_reply(stream, f.GRPC_RESOURCE_EXHAUSTED, text))
            return
        after = request.startFrom.offset
        headers = _GZIP_HEADERS if gzipped else f.RESPONSE_HEADERS
        self._readers[host] += 1
        try:
            await asyncio.sleep(_START_DELAY_S)
            while lane.behind:  # noqa: ASYNC110 a reset may wait to be read, which is no event
                await asyncio.sleep(_START_DELAY_S)
            _log.info("a reader (%s) pulls binlogs after commit ts %d", lane.peer, after)
            reader = _ReadAhead(
                self._store,
                after,
                asyncio.get_running_loop(),
                lambda: self._finish_reader(host),
                gzipped=gzipped,
            )
        except (RuntimeError, asyncio.CancelledError):  # no thread more, or the client is gone
            self._finish_reader(host)
            raise
        self._running.add(reader)
        if self._stopping:
            reader.stop()
        try:
            sender.out.append(f.header_frames(stream, headers, end_stream=False))
            lane.flush()
            while batch := await reader.read_ready():
                began = time.monotonic()
                for part in joined(batch):
                    sender.queue(stream, part)
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
        if len(self._starts) > 1000:  # drop addresses whose allowance is full again
            self._starts.clear()
        self._starts[host] = (left - 1, now)
        return True

    def _finish_reader(self, host: str) -> None:
        self._readers[host] -= 1
        if not self._readers[host]:
            del self._readers[host]

    def _end(self, lane: ClientCalls, stream: int, failure: Exception | None, after: int) -> None:
        status, text = f.GRPC_UNAVAILABLE, "the pump is shutting down"
        if failure is not None:
            status, text = f.GRPC_UNKNOWN, str(failure)
            _log.error("pulling binlogs after %d failed: %s", after, failure)
            self._latency.observe(0.0, 1, ("PullBinlogs", "fail"))
        lane.sender.finish(
            stream, f.header_frames(stream, f.status_trailers(status, text), end_stream=True)
        )


class _ReadAhead:
    """Read the store's stream in a thread, at most `_READ_AHEAD_BYTES` (or one message) ahead."""

    def __init__(
        self,
        store: Store,
        after: int,
        loop: asyncio.AbstractEventLoop,
        gone: Callable[[], None],
        *,
        gzipped: bool,
    ) -> None:
        """Start the thread; the loop's thread calls `gone` when it has ended."""
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
        """End the thread; `read_ready` returns what is left, and then nothing."""
        self._stop.set()
        with self._room:
            self._room.notify()

    async def read_ready(self) -> list[bytes]:
        """Return all ready messages, waiting for the first; [] at the end."""
        while True:
            self._ready.clear()
            self._woken = False
            ended = self._ended  # read before `_parts`, or parts added just before the end are lost
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
        given = 0  # bytes; only the loop counts how many of them are taken
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


def joined(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of messages in their order: small ones joined, large ones uncopied."""
    small: list[bytes] = []
    for message in messages:
        if len(message) <= _READ_AHEAD_BYTES:
            small.append(message)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield message
    if small:
        yield b"".join(small)


def _compressed(message: bytes) -> bytes:
    """Return a gRPC message with its prefix, compressed."""
    packed = zlib.compress(memoryview(message)[_PREFIX_BYTES:], _GZIP_LEVEL, wbits=31)
    return b"\1" + len(packed).to_bytes(4, "big") + packed
