"""A connection before its first call: what has come of it, in case another server takes it over.

Until then the server's SETTINGS are empty (all defaults), so that another HTTP/2 server can take over behind it without
the client seeing a contradiction: what the client sent is replayed to that server, without the acknowledgement of our
SETTINGS, and that server's acknowledgement of the client's SETTINGS is dropped, because we have sent it already.
"""

from __future__ import annotations

from pump_service.lane import frames as f

_FRAMES = 256


class Undecided:
    """Frames of the client's in their order."""

    __slots__ = ("_frames", "our_ack_pending", "settings")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self.settings = 0
        """the client's SETTINGS that we have acknowledged"""
        self.our_ack_pending = True
        """whether the client still has to acknowledge ours"""

    def note(self, kind: int, flags: int, raw: bytes) -> None:
        """A frame that was handled. ConnectionFault if there are too many without a call."""
        if kind == f.SETTINGS and flags & f.ACK:
            self.our_ack_pending = False
            return
        if kind == f.PING:
            return
        self._frames.append(raw)
        if len(self._frames) > _FRAMES:
            raise f.ConnectionFault(f.ENHANCE_YOUR_CALM, f"no request in {_FRAMES} frames")
        if kind == f.SETTINGS:
            self.settings += 1

    def replay(self, rest: bytes) -> bytes:
        """What the other server is to be sent first; `rest` came behind the frames."""
        return f.PREFACE + b"".join(self._frames) + rest
