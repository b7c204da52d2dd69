"""Serve `sluice.Window`: how far a window may reach, and its transactions as Arrow.

A small window comes with the answer to Bounds; Read sends others as an Arrow IPC stream.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, Protocol

import grpc
import pyarrow as pa

from sluice.errors import Signal
from sluice.pump_service.cluster import FutureTsLimit
from sluice.pump_service.store import Store
from sluice.pump_service.store.errors import (
    CorruptRecordError,
    IndexDamagedError,
    StoreError,
    WindowPurgedError,
)
from sluice.tidb import pb
from sluice.tidb.window_schema import WINDOW_SCHEMA, digest_of

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20  # of the Arrow stream, per message
_MIN_UNCOPIED_BYTES = 64 << 10  # larger writes of pyarrow are passed on without a copy
_MAX_WAIT_MS = 60_000
_MAX_AWAIT_MS = 5_000
MAX_WAITING_CALLS = 64
"""Calls that may wait for a barrier or a transaction.

More are answered at once with what is there.
"""
MAX_READS = 6
"""Windows read at a time; more wait up to `_TURN_S`."""
_MAX_COUNTING = 2  # concurrent Bounds calls that read the index
_TURN_S = 20.0
_STALL_TIMEOUT_S = 15.0
_WAIT_STEP_S = 0.5  # a call that waits for a barrier delays the pump's stop by at most this
_MAX_TS = 2**63 - 1
_INLINE_BYTES = 1 << 20
_MAX_LATE_COMMITS = 1000


class _Request(Protocol):
    cluster_id: int
    share: str


class CallRejected(Signal):
    """End a call with this gRPC status; the text is for the caller."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class ReadStream(Protocol):
    """Represent the client that reads a window."""

    def peer(self) -> str:
        """Return its address, for logs."""

    def is_active(self) -> bool:
        """Return whether the client still reads."""

    def cancel(self) -> object:
        """End its call. Any thread may call it."""


class WindowService:
    """Handle Bounds, Await and Read messages. All handlers raise CallRejected."""

    def __init__(
        self,
        cluster_id: int,
        store: Store,
        time_limit: FutureTsLimit,
        stopping: threading.Event,
        share: str = "",
    ) -> None:
        """Create the window service.

        `share` is the share of the tables that the store has, "" for all.
        """
        self._cluster_id, self._share = cluster_id, share
        self._store = store
        self._time_limit = time_limit
        self._stopping = stopping
        self._waiting = threading.BoundedSemaphore(MAX_WAITING_CALLS)
        self._offered: dict[ReadStream, float] = {}  # since when each reader's piece waits
        self._counting = threading.BoundedSemaphore(_MAX_COUNTING)
        self._reads = threading.BoundedSemaphore(MAX_READS)

    def bounds(self, request: pb.window.BoundsRequest) -> pb.window.BoundsResponse:
        """Answer Bounds: how far the next window behind lo may reach.

        Waits at most wait_ms for a barrier at fresh_ts. Then returns the largest window behind lo
        within the limits (0: no limit), and its transactions if they are small enough.
        """
        self._check(request)
        if request.lo < 0 or request.fresh_ts < 0:
            raise CallRejected(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"negative timestamps: lo {request.lo}, fresh_ts {request.fresh_ts}",
            )
        try:
            answer = self._unmarked(request) or self._marked(request)
            self._add_late(request, answer)
        except StoreError as error:
            raise _call_rejection(error) from error
        return answer

    def bounds_at_once(self, request: pb.window.BoundsRequest) -> pb.window.BoundsResponse | None:
        """Return the answer of `bounds` if the window is surely empty, without waiting.

        Else None.
        """
        self._check(request)
        if not self._may_be_unmarked(request) or not self._store.has_nothing_after(
            request.lo, self._passing(request)
        ):
            return None
        answer = pb.window.BoundsResponse(max_commit_ts=request.fresh_ts, hi=request.fresh_ts)
        self._add_late(request, answer)
        return answer

    def _passing(self, request: pb.window.BoundsRequest) -> int:
        """Return through which timestamp a reader passes if fresh_ts is confirmed.

        A timestamp from the future would make all later commits count as late.
        """
        return request.fresh_ts if self._time_limit.is_known(request.fresh_ts) else 0

    def _add_late(self, request: pb.window.BoundsRequest, answer: pb.window.BoundsResponse) -> None:
        for late in self._store.late_behind(request.lo)[-_MAX_LATE_COMMITS:]:
            answer.late.add(commit_ts=late.commit_ts, start_ts=late.start_ts)

    def _may_be_unmarked(self, request: pb.window.BoundsRequest) -> bool:
        """Return whether fresh_ts may be confirmed without a mark.

        Another pump then checks whether PD has reached it. If it hasn't, only the caller is misled
        by this pump's answer.
        """
        lo = request.lo
        is_new = self._time_limit.is_since_start(lo) and lo < request.fresh_ts
        if not request.ts_is_checked or not is_new or self._stopping.is_set():
            return False
        if self._time_limit.is_known(lo):  # a future ts would make all later commits late
            self._store.mark_read_through(lo)
        return True

    def _unmarked(self, request: pb.window.BoundsRequest) -> pb.window.BoundsResponse | None:
        """Return the bounds of a small window if no Prewrite is open; else None."""
        if not self._may_be_unmarked(request):
            return None
        size = min(request.max_bytes or _MAX_TS, request.inline_bytes, _INLINE_BYTES)
        limits = self._time_limit.passed_ts, request.max_transactions or _MAX_TS, size
        with self._counting:
            small = self._store.settled_window(
                request.lo, request.fresh_ts, *limits, is_passing=bool(self._passing(request))
            )
        if small is None or small.rows is None:
            return None
        return pb.window.BoundsResponse(
            max_commit_ts=request.fresh_ts,
            hi=request.fresh_ts,
            transactions=small.bounds.transactions,
            bytes=small.bounds.bytes,
            window=bytes(small.rows.serialize()),
        )

    def _marked(self, request: pb.window.BoundsRequest) -> pb.window.BoundsResponse:
        if self._time_limit.mark_exceeded(request.fresh_ts):
            raise CallRejected(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"fresh_ts: {self._time_limit.describe(request.fresh_ts)}",
            )
        window = b""
        reached = self._reach(request.fresh_ts, min(request.wait_ms, _MAX_WAIT_MS) / 1000)
        with self._counting:
            limits = request.max_transactions or _MAX_TS, request.max_bytes or _MAX_TS
            inline = min(request.inline_bytes, _INLINE_BYTES)
            small = self._store.small_window(request.lo, reached, limits[0], min(limits[1], inline))
            if small is not None:
                found = small.bounds
                window = bytes(small.rows.serialize()) if small.rows is not None else b""
            else:
                found = self._store.bounds(request.lo, reached, *limits)
                if found.transactions and found.bytes <= inline:
                    window = self._whole(request.lo, found.hi)
        return pb.window.BoundsResponse(
            max_commit_ts=reached,
            hi=found.hi,
            transactions=found.transactions,
            bytes=found.bytes,
            window=window,
        )

    def _whole(self, lo: int, hi: int) -> bytes:
        """Return the window as one record batch.

        Returns b"" if it can't be read, as Read then reports why, or if all of it was given up.
        """
        try:
            batches = list(self._store.read_window(lo, hi, strict=True))
        except CorruptRecordError:
            return b""
        if not batches:
            return b""
        (batch,) = (
            batches
            if len(batches) == 1
            else pa.Table.from_batches(batches).combine_chunks().to_batches()
        )
        return bytes(batch.serialize())

    def await_newer(self, request: pb.window.AwaitRequest) -> pb.window.AwaitResponse:
        """Return whether a transaction was committed after after_ts, waiting up to wait_ms."""
        self._check(request)
        wait_s = min(request.wait_ms, _MAX_AWAIT_MS) / 1000
        with self._may_wait() as may_wait:
            found = self._store.await_newer(request.after_ts, wait_s if may_wait else 0)
        return pb.window.AwaitResponse(has_more=found)

    def read(
        self, request: pb.window.ReadRequest, taker: ReadStream
    ) -> Generator[memoryview, None, None]:
        """Yield the transactions with lo < commit_ts <= hi as an Arrow stream, in MiB pieces.

        Raises CallRejected, also for a hi above max_commit_ts: that window would have gaps.
        """
        self._check(request)
        if request.hi > self._store.max_commit_ts:
            raise CallRejected(
                grpc.StatusCode.OUT_OF_RANGE,
                f"the window ends at {request.hi}, but commits are complete only through"
                f" {self._store.max_commit_ts}; ask Bounds first",
            )
        until = time.monotonic() + _TURN_S
        while not self._reads.acquire(timeout=_WAIT_STEP_S):
            if self._stopping.is_set():
                raise leaving_error()
            if not taker.is_active():
                return
            if time.monotonic() > until:
                raise CallRejected(
                    grpc.StatusCode.UNAVAILABLE, f"{MAX_READS} windows are being read; ask again"
                )
            self._cancel_stalled()
        try:
            for chunk in self._chunks(request, taker):
                self._offered[taker] = time.monotonic()
                yield chunk
                self._offered.pop(taker, None)  # the next piece may wait long for the disk
        finally:
            self._offered.pop(taker, None)
            self._reads.release()

    def digest(self, request: pb.window.DigestRequest) -> pb.window.DigestResponse:
        """Answer Digest: of the transactions behind lo, through hi or as far as they are here."""
        self._check(request)
        hi = min(request.hi, self._store.max_commit_ts)
        if not self._reads.acquire(timeout=_WAIT_STEP_S):
            raise CallRejected(
                grpc.StatusCode.UNAVAILABLE, f"{MAX_READS} windows are being read; ask again"
            )
        try:
            batches = (
                self._store.read_window(request.lo, hi, strict=True) if hi > request.lo else ()
            )
            transactions, digest = digest_of(batches)
        except StoreError as error:
            raise _call_rejection(error) from error
        finally:
            self._reads.release()
        return pb.window.DigestResponse(hi=hi, transactions=transactions, digest=digest)

    def _cancel_stalled(self) -> None:
        """Cancel readers that took nothing for `_STALL_TIMEOUT_S`, while others wait."""
        now = time.monotonic()
        for taker, since in list(self._offered.items()):
            if now - since > _STALL_TIMEOUT_S:
                _log.warning(
                    "the reader of a window (%s) took nothing for %.0f s: ended, because others"
                    " wait",
                    taker.peer(),
                    _STALL_TIMEOUT_S,
                )
                taker.cancel()

    def _reach(self, ts: int, wait_s: float) -> int:
        with self._may_wait() as may_wait:
            until = time.monotonic() + (wait_s if may_wait else 0)
            while True:
                left = max(until - time.monotonic(), 0)
                reached = self._store.barrier(ts, min(left, _WAIT_STEP_S))
                if reached >= ts or left <= _WAIT_STEP_S or self._stopping.is_set():
                    return reached

    @contextlib.contextmanager
    def _may_wait(self) -> Iterator[bool]:
        may_wait = self._waiting.acquire(blocking=False)
        try:
            yield may_wait
        finally:
            if may_wait:
                self._waiting.release()

    def _chunks(self, request: pb.window.ReadRequest, taker: ReadStream) -> Iterator[memoryview]:
        sink = _Chunks()
        try:
            with pa.ipc.new_stream(sink, WINDOW_SCHEMA) as writer:
                # strict: excluding a transaction would lose it downstream silently
                for batch in self._store.read_window(request.lo, request.hi, strict=True):
                    if self._stopping.is_set():
                        raise leaving_error()
                    if not taker.is_active():
                        return
                    writer.write_batch(batch)
                    del batch
                    yield from sink.pop_pieces()
        except StoreError as error:
            raise _call_rejection(error) from error
        yield from sink.pop_pieces()

    def _check(self, request: _Request) -> None:
        if request.cluster_id != self._cluster_id:
            raise CallRejected(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"cluster ID are mismatch, {request.cluster_id} vs {self._cluster_id}",
            )
        # An address may have changed hands, and an older reader knows no shares.
        if request.share != self._share:
            raise CallRejected(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this pump has {_named(self._share)}, the reader wants {_named(request.share)}",
            )


def _named(share: str) -> str:
    return f"share {share} of the tables" if share else "all tables"


def _call_rejection(error: StoreError) -> CallRejected:
    code = grpc.StatusCode.UNKNOWN
    if isinstance(error, WindowPurgedError):
        code = grpc.StatusCode.OUT_OF_RANGE
    elif isinstance(error, CorruptRecordError):
        code = grpc.StatusCode.DATA_LOSS
    elif isinstance(error, IndexDamagedError):
        code = grpc.StatusCode.UNAVAILABLE
    return CallRejected(code, str(error))


def leaving_error() -> CallRejected:
    """Return the rejection that readers get from a pump about to stop."""
    return CallRejected(
        grpc.StatusCode.UNAVAILABLE, "the pump is stopping; ask again when it is back"
    )


class _Chunks:
    """Act as pyarrow's output file and hand its bytes on in pieces; large buffers aren't copied."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._parts.append(view if len(view) >= _MIN_UNCOPIED_BYTES else memoryview(bytes(view)))
        return len(view)

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def pop_pieces(self) -> Iterator[memoryview]:
        """Yield the written bytes: small ones joined, large ones cut.

        Each is released when yielded.
        """
        parts, self._parts = self._parts[::-1], []
        while parts:
            piece = parts.pop()
            if len(piece) < _MIN_UNCOPIED_BYTES:
                together = bytearray(piece)
                while (
                    parts
                    and len(parts[-1]) < _MIN_UNCOPIED_BYTES
                    and len(together) + len(parts[-1]) <= _CHUNK_BYTES
                ):
                    together += parts.pop()
                piece = memoryview(together)
            for at in range(0, len(piece), _CHUNK_BYTES):
                yield piece[at : at + _CHUNK_BYTES]
