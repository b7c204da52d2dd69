"""Read the chunks of a gRPC call as one file, and break off a call that stays silent."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

_END_OF_STREAM = bytes.fromhex("ffffffff00000000")


class ChunkFile(io.RawIOBase):
    """The chunks of a call as one readable file.

    A pump that stays silent for `timeout_s` breaks it.
    """

    def __init__(self, call: Any, timeout_s: float) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self._call = call
        self._chunk = memoryview(b"")
        self._tail = b""
        self._guard = SilenceGuard(call.cancel, timeout_s)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._chunk:
            chunk = self._next()
            if chunk is None:
                return 0
            self._chunk = memoryview(chunk)
        size = min(len(buffer), len(self._chunk))
        buffer[:size] = self._chunk[:size]
        self._chunk = self._chunk[size:]
        return size

    def finish(self) -> None:
        """Wait for the end of the call.

        Raises its error; ValueError if the Arrow stream had no end or goes on after it.
        """
        while (chunk := self._next()) is not None:
            if chunk:
                raise ValueError("data after the end of the Arrow stream")
        if self._tail != _END_OF_STREAM:
            raise ValueError("the pump broke off in the middle: the Arrow stream has no end")

    def close(self) -> None:
        if not self.closed:
            self._guard.close()
            self._call.cancel()
        super().close()

    def _next(self) -> bytes | None:
        try:
            with self._guard:
                chunk = bytes(next(self._call).chunk)
            self._tail = (self._tail + chunk[-len(_END_OF_STREAM) :])[-len(_END_OF_STREAM) :]
            return chunk
        except StopIteration:
            return None
        except grpc.RpcError as error:
            self.failure = error
            if self._guard.fired:
                self.failure = TimeoutError(f"nothing came for {self._guard.seconds:g} s")
            raise


class SilenceGuard:
    """Call `cancel` when a `with` block over it lasts longer than `seconds`.

    grpc's next() has no time-out of its own.
    """

    def __init__(self, cancel: Callable[[], object], seconds: float) -> None:
        self.seconds = seconds
        self.fired = False
        self._cancel = cancel
        self._since: float | None = None
        self._over = threading.Event()
        threading.Thread(target=self._run, name="pump-read-guard", daemon=True).start()

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._since = None

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(min(self.seconds / 4, 1.0)):
            since = self._since
            if since is not None and time.monotonic() - since > self.seconds:
                self.fired = True
                self._cancel()
                return
