"""Hold incomplete requests of connections, and limit their memory, each and together."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import Headers
from sluice.pump_service.grpc_fastpath.limits import MAX_OTHER_MESSAGE_BYTES, FastPathLimits

_UPLOAD_BYTES, _FIELD_BYTES = 512, 96
"""that a call takes besides its body, and a field of its headers besides its bytes"""


class PartialRequest:
    """A request in the making. `headers` is None for WriteBinlog."""

    __slots__ = (
        "_body",
        "cost",
        "expected",
        "granted",
        "headers",
        "owner",
        "seen",
        "size",
        "stream",
    )

    def __init__(
        self, owner: PartialRequests, stream: int, granted: int, headers: Headers | None
    ) -> None:
        self._body = io.BytesIO()  # many small frames take no more than their bytes
        self.owner = owner
        self.stream = stream
        self.size = 0  # bytes of body received
        self.cost = 0  # bytes that it takes besides
        self.expected = 0  # bytes of body by its gRPC prefix, once that is there
        self.granted = granted  # bytes the client may still send
        self.headers = headers
        self.seen = time.monotonic()  # when something of the body came

    def append(self, payload: bytes) -> None:
        """More of the body."""
        self._body.write(payload)
        self.size += len(payload)
        self.seen = time.monotonic()

    def announced(self) -> int:
        """Return the size of the message by its gRPC prefix, which must be there."""
        return int.from_bytes(self._body.getbuffer()[1:5], "big")

    def body(self) -> bytes:
        """Return the whole body."""
        return self._body.getvalue()


class PartialRequestBudget:
    """Account for the uploads of all connections.

    Kept are the bytes received, the begun uploads in their order, and those that wait for room.
    The oldest one always gets room and doesn't count, so that one after the other comes to its end
    however large it is.
    """

    def __init__(self, limit: int, share: int, has_room: Callable[[], bool]) -> None:
        """Set the limits.

        `share`: bytes that a connection may have received in any case, so that large uploads of
        others don't shut it out, as long as there is room for what connections keep.
        """
        self._limit = limit
        self.has_room = has_room
        self.share = share
        self._size = 0
        self._begun: dict[PartialRequest, None] = {}
        self._starved: dict[PartialRequest, None] = {}

    @property
    def size(self) -> int:
        """Return the bytes of all uploads."""
        return self._size

    def add(self, upload: PartialRequest, size: int) -> None:
        """Count `size` more bytes."""
        self._begun[upload] = None
        self._size += size

    def drop(self, upload: PartialRequest) -> None:
        """Remove an upload that is complete or given up, so that others may have its room."""
        if upload in self._begun:
            del self._begun[upload]
            self._starved.pop(upload, None)
            self._size -= upload.size
        self.relieve()

    def mark_starved(self, upload: PartialRequest) -> None:
        """Mark the upload as waiting for room."""
        self._starved[upload] = None

    def is_over_share(self, upload: PartialRequest, parts: int = 1) -> bool:
        """Return whether more than the `parts`-th of the limit is taken and `upload` must wait.

        The oldest upload never has to wait, and doesn't count.
        """
        oldest = next(iter(self._begun), upload)
        return upload is not oldest and (self._size - oldest.size) * parts > self._limit

    def is_oldest(self, owner: PartialRequests) -> bool:
        """Return whether the upload that gets room in any case is one of `owner`."""
        oldest = next(iter(self._begun), None)
        return oldest is not None and oldest.owner is owner

    def relieve(self) -> None:
        """Give room to those that wait for it, as far as there is any."""
        for upload in list(self._starved):
            if not self.is_over_share(upload, 2):
                del self._starved[upload]
                upload.owner.grant(upload, now=True)

    def stalled(self, before: float) -> list[PartialRequest]:
        """Return uploads that received nothing since `before` (monotonic), though they may send."""
        return [
            upload for upload in self._begun if upload.seen < before and upload not in self._starved
        ]


class PartialRequests:
    """Open calls by stream.

    Frames to send go to `out`; `flush` sends them when nothing is being read.

    `open` maps a stream to None while nothing of a WriteBinlog request's body has come: most calls
    never need more.
    """

    __slots__ = ("_budget", "_costs", "_flush", "_message", "_out", "_size", "open", "window")

    def __init__(
        self,
        limits: FastPathLimits,
        budget: PartialRequestBudget,
        out: list[bytes],
        flush: Callable[[], None],
    ) -> None:
        self._message = limits.message
        self._budget = budget
        self._out = out
        self._flush = flush
        self._size = 0
        self._costs = 0
        self.open: dict[int, PartialRequest | None] = {}
        self.window = limits.stream_window  # what a new stream may send

    @property
    def held_bytes(self) -> int:
        """Return bytes that it takes; of bodies those that a connection may have in any case."""
        return min(self._size, self._budget.share) + self._costs

    def begin(self, stream: int, headers: Headers | None) -> None:
        """Register a call that has been opened; `headers` None: WriteBinlog."""
        if headers is None:
            self.open[stream] = None
            return
        upload = self.open[stream] = PartialRequest(self, stream, self.window, headers)
        upload.cost = _UPLOAD_BYTES + sum(
            len(name) + len(value) + _FIELD_BYTES for name, value in headers
        )
        self._costs += upload.cost

    def add(self, stream: int, payload: bytes, length: int, *, end: bool) -> PartialRequest | None:
        """Add a DATA frame of `length` flow-controlled bytes on an open stream.

        The upload if that was its end.
        """
        upload = self.open[stream]
        if upload is None:
            upload = self.open[stream] = PartialRequest(self, stream, self.window, None)
            upload.cost = _UPLOAD_BYTES
            self._costs += _UPLOAD_BYTES
        upload.granted -= length
        if upload.granted < 0:
            self.reset(stream, f.FLOW_CONTROL_ERROR)
            return None
        before = upload.size
        upload.append(payload)
        self._size += len(payload)
        self._budget.add(upload, len(payload))
        if end:
            self.drop(stream)
            return upload
        if before < 5 <= upload.size and self._too_long(stream, upload):
            return None
        if upload.size > max(5, upload.expected):
            self.reset(stream, f.PROTOCOL_ERROR)
            return None
        small = self._size <= self._budget.share and self._budget.has_room()
        if not small and self._budget.is_over_share(upload):
            self.reset(stream, f.REFUSED_STREAM)
        elif upload.granted < self.window // 2:
            # Under pressure only the oldest call gets room, so that at least that one comes to its
            # end.
            if small or not self._budget.is_over_share(upload, 2):
                self.grant(upload)
            else:
                self._budget.mark_starved(upload)
        return None

    def drop(self, stream: int) -> None:
        """Remove a call that is complete, refused or reset."""
        upload = self.open.pop(stream)
        if upload is not None:
            self._size -= upload.size
            self._costs -= upload.cost
            self._budget.drop(upload)

    def close(self) -> None:
        """Remove all calls because the connection is closed."""
        for stream in list(self.open):
            self.drop(stream)
        self._flush = _nothing  # it knows the connection, which else stays until a full collection

    def grant(self, upload: PartialRequest, *, now: bool = False) -> None:
        """Let the client send more of it; `now`: nothing of this connection is being read."""
        if upload.granted < self.window and self.open.get(upload.stream) is upload:
            self._out.append(f.window_update(upload.stream, self.window - upload.granted))
            upload.granted = self.window
            if now:
                self._flush()

    def reset(self, stream: int, code: int) -> None:
        """Give the call up, and reset its stream."""
        self.drop(stream)
        self._out.append(f.reset(stream, code))

    def _too_long(self, stream: int, upload: PartialRequest) -> bool:
        size = upload.announced()
        limit = self._message if upload.headers is None else MAX_OTHER_MESSAGE_BYTES
        if size <= limit:
            upload.expected = 5 + size
            return False
        self._out.append(message_too_large(stream, size, limit))
        self.reset(stream, f.NO_ERROR)
        return True


def _nothing() -> None:
    pass


def message_too_large(stream: int, size: int, limit: int) -> bytes:
    """Return the answer to a message above the limit.

    TiDB knows the words "larger than max" and fails that transaction only.
    """
    text = f"received message larger than max ({size} vs. {limit} bytes, flag -max-message-size)"
    return f.error_reply(stream, f.GRPC_RESOURCE_EXHAUSTED, text)
