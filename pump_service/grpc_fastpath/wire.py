"""A connection's transport: what is written, why nothing is read, and its end."""

from __future__ import annotations

import asyncio
import time

from sluice.pump_service.grpc_fastpath.sender import TRANSPORT_BYTES

_LAST_BYTES_TIMEOUT_S = 10.0


class FrameTransport:
    """Frames to write are put into `out`, a list that others hold too; `flush` writes them."""

    __slots__ = (
        "_held",
        "_last_bytes",
        "_out",
        "_stuck",
        "_writable",
        "closing",
        "peer",
        "transport",
    )

    def __init__(self, transport: asyncio.Transport, out: list[bytes]) -> None:
        self.transport = transport
        self._out = out
        self._held: set[str] = set()
        self._writable: asyncio.Future[None] | None = None  # while the transport takes nothing
        self._stuck = 0.0
        self._last_bytes: asyncio.TimerHandle | None = None
        self.closing = False
        """from then on nothing of the client's counts"""
        name = transport.get_extra_info("peername")  # TLS forgets it with the connection
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix socket"
        """the client's address, for logs"""

    def flush(self) -> None:
        """Write what is ready."""
        out = self._out
        if out and not self.transport.is_closing():
            self.transport.write(b"".join(out))
        out.clear()

    def set_paused(self, why: str, *, on: bool) -> None:
        """Stop reading for this reason, or no longer; it is read while there is none."""
        if on:
            self._held.add(why)
            if self.transport.is_reading():
                self.transport.pause_reading()
        else:
            self._held.discard(why)
            if not self._held and not self.closing:
                self.transport.resume_reading()

    def is_held(self, why: str) -> bool:
        """Return whether it isn't read for this reason."""
        return why in self._held

    def pause_writing(self) -> None:
        """Stop sending: asyncio calls it when the transport's buffer is full."""
        self.set_paused("writing", on=True)
        self._stuck = time.monotonic()
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Send again: asyncio calls it when the transport's buffer has room."""
        self.set_paused("writing", on=False)
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    @property
    def unsent(self) -> int:
        """Return bytes that the client doesn't take."""
        return 0 if self._writable is None else self.transport.get_write_buffer_size()

    @property
    def room(self) -> int:
        """Return how many bytes of messages the transport may be given now."""
        if self._writable is not None or self.transport.is_closing():
            return 0
        return TRANSPORT_BYTES - self.transport.get_write_buffer_size()

    def stuck_s(self, now: float) -> float:
        """For how long the client has taken nothing of what waits for it; 0 if nothing waits."""
        return 0.0 if self._writable is None else now - self._stuck

    async def written(self) -> None:
        """Wait until the socket has taken what was written.

        CancelledError if the connection is lost.
        """
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Write what is ready and close; a client that doesn't take the last bytes loses them."""
        self.closing = True
        self.flush()
        self.transport.close()
        self._last_bytes = asyncio.get_running_loop().call_later(
            _LAST_BYTES_TIMEOUT_S, self.transport.abort
        )

    def on_lost(self) -> None:
        """Stop the timers and waits: the connection is closed."""
        self.closing = True
        if self._last_bytes is not None:
            self._last_bytes.cancel()
        if self._writable is not None:
            self._writable.cancel()
