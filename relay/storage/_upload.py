"""Files on their way into an object store.

A file of at most one block is created in one request, under the store's own condition. A larger one
goes up in parts, a few of them in memory at a time; it is published when it ends, and taken back
when it is given up. (A process that is killed leaves its parts behind: a rule of the bucket's
removes them, see docs/how-to/object-stores.md.)
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

import obstore

from sluice.errors import Signal
from sluice.relay.storage.protocol import ByteWriter

__all__ = ["BLOCK_BYTES", "ObjectFileWriter"]

BLOCK_BYTES = 8 * 2**20
_MAX_PARALLEL_PARTS = 2
_POLL_INTERVAL_S = 0.05


class _UploadStorage(Protocol):
    """The methods that an upload needs of its storage."""

    timeout_s: float
    store: Any

    def create_small(self, path: str, data: bytes) -> None: ...

    def size(self, path: str) -> int | None: ...

    def guarded(
        self, what: str, function: Callable[..., Any], *args: Any, **options: Any
    ) -> Any: ...


class _UploadAborted(Signal):
    """The file isn't wanted any more: obstore takes the upload back."""


class ObjectFileWriter:
    """An upload. It is published when it ends; given up, nothing of it is seen."""

    def __init__(self, storage: _UploadStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self._waiting = bytearray()
        self._parts: _PartUploads | None = None

    def write(self, data: bytes | memoryview) -> int:
        self._waiting += data
        if len(self._waiting) > BLOCK_BYTES:
            if self._parts is None:
                if self._storage.size(self._path) is not None:
                    raise FileExistsError(f"{self._path}: it exists")
                self._parts = _PartUploads(self._storage, self._path)
            self._parts.put(self._next_part())
        return len(data)

    def __enter__(self) -> ByteWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._parts is None:
            if error is None:
                self._storage.create_small(self._path, self._next_part())
        elif error is None:
            self._parts.finish(self._next_part())
        else:
            self._parts.give_up()

    def _next_part(self) -> bytes:
        data, self._waiting = bytes(self._waiting), bytearray()
        return data


class _PartUploads:
    """An upload in parts, by a thread of its own."""

    def __init__(self, storage: _UploadStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self._blocks: queue.Queue[bytes | None] = queue.Queue(1)
        self._is_aborted = threading.Event()
        self._error: BaseException | None = None
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="relay-upload", daemon=True)
        self._thread.start()

    def put(self, data: bytes | None) -> None:
        """Pass on the next block, None for the end. Raises the upload's error, TimeoutError."""
        until = time.monotonic() + self._storage.timeout_s
        while True:
            if not self._thread.is_alive():
                self._raise_error()
            try:
                self._blocks.put(data, timeout=_POLL_INTERVAL_S)
                break
            except queue.Full:
                if time.monotonic() > until:
                    self.give_up()
                    raise self._too_slow() from None
        self._size += len(data or b"")

    def finish(self, last: bytes) -> None:
        """Publish the file. Raises what the upload met, TimeoutError."""
        if last:
            self.put(last)
        self.put(None)
        self._thread.join(self._storage.timeout_s)
        if self._thread.is_alive():
            self.give_up()
            raise self._too_slow()
        try:
            self._raise_error()
        except OSError:
            # The store may have put it together, and the answer was lost. No other writer has
            # this name.
            if self._storage.size(self._path) != self._size:
                raise

    def give_up(self) -> None:
        """Take it back; nothing waits for that."""
        self._is_aborted.set()

    def _too_slow(self) -> TimeoutError:
        return TimeoutError(
            f"writing {self._path}: a part took longer than {self._storage.timeout_s:g} s"
        )

    def _raise_error(self) -> None:
        error = self._error
        if error is not None:

            def fail() -> None:
                raise error

            self._storage.guarded(f"writing {self._path}", fail)

    def _run(self) -> None:
        try:
            obstore.put(
                self._storage.store,
                self._path,
                self._all(),
                use_multipart=True,
                chunk_size=BLOCK_BYTES,
                max_concurrency=_MAX_PARALLEL_PARTS,
            )
        except BaseException as error:
            self._error = error

    def _all(self) -> Iterator[bytes]:
        while True:
            if self._is_aborted.is_set():
                raise _UploadAborted
            try:
                data = self._blocks.get(timeout=_POLL_INTERVAL_S)
            except queue.Empty:
                continue
            if data is None:
                return
            yield data
