"""PD's timestamp stream: one request at a time on one long-lived stream.

Each request serves all threads that wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from sluice.tidb import pb, tso
from sluice.tidb.backoff import Backoff, Deadline
from sluice.tidb.grpc_lite import UnaryConnection, UnaryEndpoint, UseFullGrpc
from sluice.tidb.pd.errors import PDError, worth_retrying
from sluice.tidb.rpc import describe, status

_STUCK_GRACE_S = 0.2  # the worker, which knows the reason of a failure, speaks first


class PDLeader(Protocol):
    """The way to PD's leader, which the stream needs of PDClient."""

    is_plain: bool

    @property
    def urls(self) -> list[str]: ...

    def leader_channel(self, backoff: Backoff) -> tuple[str, grpc.Channel]: ...

    def forget_leader(self, url: str) -> None: ...

    def header(self) -> pb.pd.RequestHeader: ...


class TsoStream:
    """Hand out timestamps to many threads.

    A worker thread owns the stream; it starts with the first request.
    """

    def __init__(self, client: PDLeader, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._attempt_s = max(timeout_s / 3, 0.2)
        self._waiting: list[Future[int]] = []
        self._wakeup = threading.Condition()
        self._worker: threading.Thread | None = None
        self._closed = False
        self._last = 0
        self._call: Any = None
        self._sent_at: float | None = None
        self._requests: queue.SimpleQueue[pb.pd.TsoRequest | None] = queue.SimpleQueue()
        self._url = ""
        self._unary: UnaryEndpoint | None = None
        self._unary_call: tuple[UnaryConnection, int] | None = None
        self._turn = threading.Lock()
        """Held by the stream's user: the worker, or a sole caller, which needs no other thread."""

    def get(self) -> int:
        """Return a timestamp. Raises PDError after the time-out, or if PD's clock went back."""
        alone = self._ask_in_caller()
        if alone is not None:
            return alone
        future: Future[int] = Future()
        with self._wakeup:
            if self._closed:
                raise PDError("the PD client is closed")
            if self._worker is None:
                self._worker = threading.Thread(target=self._run, name="pd-tso", daemon=True)
                self._worker.start()
            self._waiting.append(future)
            self._wakeup.notify()
        deadline = Deadline(self._timeout_s + _STUCK_GRACE_S)
        while True:
            try:
                return future.result(timeout=min(self._attempt_s, deadline.left()))
            except FutureTimeout:
                self._cancel_if_stuck()
                if deadline.passed() and not future.done():
                    future.cancel()
                    raise PDError(
                        f"no timestamp within {self._timeout_s:g} s from PD at "
                        f"{self._url or ', '.join(self._client.urls)}"
                    ) from None

    def close(self) -> None:
        with self._wakeup:
            self._closed = True
            self._wakeup.notify_all()
        self._drop_stream()
        if self._worker is not None:
            self._worker.join(timeout=2)

    def _cancel_if_stuck(self) -> None:
        # next() on a stream knows no time-out, so a thread that waits too long for the worker
        # cuts the stream under it.
        sent_at, call = self._sent_at, self._call
        if (
            call is not None
            and sent_at is not None
            and time.monotonic() - sent_at >= self._attempt_s * 0.9
        ):
            call.cancel()

    def _run(self) -> None:
        while True:
            with self._wakeup:
                while not self._waiting and not self._closed:
                    self._wakeup.wait()
                batch, self._waiting = self._waiting, []
                closed = self._closed
            if closed:
                self._fail(batch, "the PD client is closed")
                return
            batch = [future for future in batch if future.set_running_or_notify_cancel()]
            if batch:
                with self._turn:
                    self._serve(batch)

    def _ask_in_caller(self) -> int | None:
        """Return a timestamp, if the stream is there and no other thread waits for one.

        The worker finds out about any failure.
        """
        if self._unary_call is None or self._waiting or not self._turn.acquire(blocking=False):
            return None
        try:
            response = (
                None
                if self._unary_call is None
                else self._ask_by_unary(1, Backoff(Deadline(self._timeout_s)))
            )
            if response is None:
                return None
            ts, _ = self._granted(response, 1)
            if ts <= self._last:
                return None
            self._last = ts
        except ValueError:
            return None
        finally:
            self._turn.release()
        return ts

    def _serve(self, batch: list[Future[int]]) -> None:
        backoff = Backoff(Deadline(self._timeout_s))
        while not self._closed:
            try:
                last, step = self._ask(len(batch), backoff)
            except PDError as error:
                self._drop_stream()
                self._fail(batch, str(error))
                return
            except (grpc.RpcError, StopIteration, ValueError) as error:
                failure = (
                    describe(error) if isinstance(error, grpc.RpcError) else "the stream ended"
                )
                retry = not isinstance(error, grpc.RpcError) or worth_retrying(error)
                if isinstance(error, grpc.RpcError) and status(error) == grpc.StatusCode.CANCELLED:
                    failure = "it stayed silent"  # _cancel_if_stuck cut the stream
                self._client.forget_leader(self._url)
                self._drop_stream()
                if not retry:
                    self._fail(batch, f"PD at {self._url} refused a timestamp: {failure}")
                    return
                if not backoff.wait("tso", 20, 1000):
                    self._fail(
                        batch,
                        f"no timestamp within {self._timeout_s:g} s from PD at {self._url}; last"
                        f" failure: {failure}",
                    )
                    return
                continue
            first = last - (len(batch) - 1) * step
            if first <= self._last:
                # Handing it out could reorder commits; the stream is kept, PD may catch up.
                self._fail(
                    batch, f"PD at {self._url} went back in time: {first} after {self._last}"
                )
                return
            self._last = last
            for position, future in enumerate(batch):
                future.set_result(first + position * step)
            return
        self._fail(batch, "the PD client is closed")

    def _ask(self, count: int, backoff: Backoff) -> tuple[int, int]:
        """Return (largest timestamp granted, distance between neighbours)."""
        response = (
            self._ask_by_unary(count, backoff)
            if self._client.is_plain and self._call is None
            else None
        )
        if response is None:
            response = self._ask_by_grpc(count, backoff)
        return self._granted(response, count)

    @staticmethod
    def _granted(response: pb.pd.TsoResponse, count: int) -> tuple[int, int]:
        problem = response.header.error
        if problem.type != pb.pd.OK or response.count != count:
            raise ValueError(
                f"unexpected answer: {problem.message or f'{response.count} instead of {count}'}"
            )
        stamp = response.timestamp
        return tso.compose(stamp.physical, stamp.logical), 1 << stamp.suffix_bits

    def _ask_by_grpc(self, count: int, backoff: Backoff) -> pb.pd.TsoResponse:
        if self._call is None:
            self._open(backoff)
        self._sent_at = time.monotonic()
        self._requests.put(pb.pd.TsoRequest(header=self._client.header(), count=count))
        try:
            response: pb.pd.TsoResponse = next(self._call)
        finally:
            self._sent_at = None
        return response

    def _ask_by_unary(self, count: int, backoff: Backoff) -> pb.pd.TsoResponse | None:
        """Return the answer; None where grpcio has to make the call."""
        call = self._unary_call
        if call is None:
            self._url, _ = self._client.leader_channel(backoff)
            if self._unary is None or self._unary.url != self._url:
                self._unary = UnaryEndpoint(self._url, min(self._attempt_s, 1.0))
        lean = self._unary
        assert lean is not None
        request = pb.pd.TsoRequest(header=self._client.header(), count=count).SerializeToString()
        try:
            if call is None:
                connection = lean.connection()
                if connection is None:
                    return None
                call = self._unary_call = (
                    connection,
                    connection.begin("/pdpb.PD/Tso", request, more=True),
                )
            else:
                call[0].send(call[1], request)
            answer: pb.pd.TsoResponse = pb.pd.TsoResponse.FromString(call[0].receive(call[1]))
        except (UseFullGrpc, DecodeError):
            self._unary_call = None
            lean.failed()
            return None
        return answer

    def _open(self, backoff: Backoff) -> None:
        self._url, channel = self._client.leader_channel(backoff)
        requests: queue.SimpleQueue[pb.pd.TsoRequest | None] = queue.SimpleQueue()

        def feed() -> Iterator[pb.pd.TsoRequest]:
            while (request := requests.get()) is not None:
                yield request

        self._requests = requests
        self._call = channel.stream_stream(
            "/pdpb.PD/Tso",
            request_serializer=pb.pd.TsoRequest.SerializeToString,
            response_deserializer=pb.pd.TsoResponse.FromString,
        )(feed())

    def _drop_stream(self) -> None:
        call, self._call = self._call, None
        lean, self._unary_call = self._unary, None
        if lean is not None:
            lean.close()
        self._requests.put(None)  # ends the thread in which grpc reads feed()
        if call is not None:
            call.cancel()

    def _fail(self, batch: list[Future[int]], message: str) -> None:
        for future in batch:
            if not future.done():
                future.set_exception(PDError(message))
