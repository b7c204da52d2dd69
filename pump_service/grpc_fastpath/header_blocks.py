"""Assemble header blocks that don't lie in one plain HEADERS frame.

Those are padded, have a priority, or are continued in further frames.
"""

from __future__ import annotations

from sluice.pump_service.grpc_fastpath import frames as f

_MAX_CONTINUATIONS = 64


class HeaderBlocks:
    """At most one is open at a time, as HTTP/2 has it.

    Then nothing but its continuation may come.
    """

    __slots__ = ("_flags", "_limit", "_parts", "size", "stream")

    def __init__(self, limit: int) -> None:
        """Create the header blocks; `limit`: bytes that a block may have."""
        self._limit = limit
        self._flags = 0
        self._parts: list[bytes] = []
        self.size = 0
        """bytes of the open one"""
        self.stream = 0
        """whose block is open, 0 if none is"""

    def begin(self, stream: int, flags: int, payload: bytes) -> bytes | None:
        """Return the block of a HEADERS frame; None if it goes on in CONTINUATIONs."""
        payload = unpad(payload, flags)
        if flags & f.PRIORITY_FLAG:
            if len(payload) < 5:
                raise f.Http2ConnectionError(
                    f.FRAME_SIZE_ERROR, "HEADERS too short for its priority"
                )
            payload = payload[5:]
        if flags & f.END_HEADERS:
            return payload
        if not stream:
            raise f.Http2ConnectionError(f.PROTOCOL_ERROR, "HEADERS on stream 0")
        self.stream, self._flags, self._parts = stream, flags, [payload]
        self.size = len(payload)
        return None

    def continue_block(self, stream: int, flags: int, payload: bytes) -> tuple[int, bytes] | None:
        """Take a CONTINUATION: return the HEADERS frame's flags and the block if it is whole."""
        if not self.stream or self.stream != stream:
            raise f.Http2ConnectionError(f.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        parts = self._parts
        parts.append(payload)
        self.size += len(payload)
        if len(parts) > _MAX_CONTINUATIONS or self.size > self._limit:
            raise f.Http2ConnectionError(
                f.ENHANCE_YOUR_CALM,
                f"a header block above {self._limit} bytes or in too many frames",
            )
        if not flags & f.END_HEADERS:
            return None
        self.stream, self._parts, self.size = 0, [], 0
        return self._flags, b"".join(parts)


def unpad(payload: bytes, flags: int) -> bytes:
    """Return the payload without its padding, if the frame's flags announce padding."""
    if not flags & f.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise f.Http2ConnectionError(f.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
