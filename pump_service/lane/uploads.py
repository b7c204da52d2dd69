"""The calls of a connection whose requests aren't complete, and how much memory they may take."""

from __future__ import annotations

from pump_service.lane import frames as f
from pump_service.lane.context import LaneLimits
from pump_service.lane.hpack import Headers


class Upload:
    """A request in the making. `headers` is None for WriteBinlog."""

    __slots__ = ("chunks", "granted", "headers", "size")

    def __init__(self, granted: int, headers: Headers | None) -> None:
        self.chunks: list[bytes] = []
        self.size = 0  # bytes of body received
        self.granted = granted  # bytes the client may still send
        self.headers = headers

    def body(self) -> bytes:
        """All that came."""
        return b"".join(self.chunks)


class Uploads:
    """Open calls by stream. Frames to send go to `out`.

    `open` maps a stream to None while nothing of a WriteBinlog request's body has come: most calls never need more.
    """

    __slots__ = ("_limits", "_out", "_size", "open", "starved", "window")

    def __init__(self, limits: LaneLimits, out: list[bytes]) -> None:
        self._limits = limits
        self._out = out
        self._size = 0
        self.starved: set[int] = set()  # partial uploads that wait for room
        self.open: dict[int, Upload | None] = {}
        self.window = f.DEFAULT_WINDOW  # what a new stream may send

    def begin(self, stream: int, headers: Headers | None) -> None:
        """A call has been opened; `headers` None: WriteBinlog."""
        self.open[stream] = None if headers is None else Upload(self.window, headers)

    def add(self, stream: int, payload: bytes, length: int, *, end: bool) -> Upload | None:
        """A DATA frame of `length` flow-controlled bytes came on an open stream. The upload if that was its end."""
        upload = self.open[stream]
        if upload is None:
            upload = self.open[stream] = Upload(self.window, None)
        upload.granted -= length
        if upload.granted < 0:
            self._reset(stream, f.FLOW_CONTROL_ERROR)
            return None
        before = upload.size
        upload.chunks.append(payload)
        upload.size += len(payload)
        self._size += len(payload)
        if end:
            self.drop(stream)
            return upload
        if before < 5 <= upload.size and self._too_long(stream, upload):
            return None
        oldest = stream == next(iter(self.open))
        if self._size > self._limits.partial and not oldest:
            self._reset(stream, f.REFUSED_STREAM)
        elif upload.granted < self.window // 2:
            # Under pressure only the oldest call gets room, so that at least that one comes to its end.
            if oldest or self._size * 2 < self._limits.partial:
                self._grant(stream, upload)
            else:
                self.starved.add(stream)
        return None

    def drop(self, stream: int) -> None:
        """The call is complete, refused or reset: others get its room."""
        upload = self.open.pop(stream)
        if upload is not None:
            self._size -= upload.size
        self.relieve()

    def relieve(self) -> None:
        """A call is gone: give room to those that wait for it. The next one in line may be the oldest now."""
        while self.starved:
            starved = self.starved.pop()
            waiting = self.open.get(starved)
            if waiting is not None:
                self._grant(starved, waiting)

    def _grant(self, stream: int, upload: Upload) -> None:
        self._out.append(f.window_update(stream, self.window - upload.granted))
        upload.granted = self.window

    def _too_long(self, stream: int, upload: Upload) -> bool:
        size = int.from_bytes(upload.body()[1:5], "big")
        if size <= self._limits.message:
            return False
        self._out.append(too_long(stream, size, self._limits.message))
        self._reset(stream, f.NO_ERROR)
        return True

    def _reset(self, stream: int, code: int) -> None:
        self.drop(stream)
        self._out.append(f.reset(stream, code))


def too_long(stream: int, size: int, limit: int) -> bytes:
    """The answer to a message above the limit; TiDB knows the words "larger than max" and fails that transaction only."""
    text = f"received message larger than max ({size} vs. {limit} bytes, flag -max-message-size)"
    return f.error_reply(stream, f.GRPC_RESOURCE_EXHAUSTED, text)
