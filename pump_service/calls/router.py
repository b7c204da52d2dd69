"""Route calls other than WriteBinlog: PullBinlogs, sluice.Window's, and Cistern.Notify.

A request is one small message, possibly compressed: a Drainer with `compressor = "gzip"` sends it
so. Answers may be streams, sent as the client's flow-control windows allow.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Sequence

from sluice.errors import Signal
from sluice.pump_service.calls.pulls import PullBinlogsCalls
from sluice.pump_service.calls.windows import WindowCalls
from sluice.pump_service.grpc_fastpath import ClientCalls
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.grpc_fastpath.hpack import Header, Headers
from sluice.pump_service.grpc_fastpath.limits import MAX_OTHER_MESSAGE_BYTES

_log = logging.getLogger(__name__)

_GZIP = (b"grpc-encoding", b"gzip")
_PULL = "/binlog.Pump/PullBinlogs"
_NOTIFY = "/binlog.Cistern/Notify"
_NOTIFIED = b"\0" * 5  # an empty message behind its gRPC prefix


class RpcRouter:
    """Start a task for each call.

    Called as `router(lane, stream, headers, body)`. Cancelling the task cancels the call.
    """

    def __init__(self, pulls: PullBinlogsCalls, windows: WindowCalls | None) -> None:
        """Route to these handlers.

        Without `windows` the pump serves only what an original pump does.
        """
        self._pulls = pulls
        self._windows = windows

    def __call__(
        self, lane: ClientCalls, stream: int, headers: Sequence[Header], body: bytes
    ) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run(lane, stream, tuple(headers), body))

    def stop(self) -> None:
        """End calls that wait for an event. The loop's thread calls it."""
        if self._windows is not None:
            self._windows.stop()

    async def _run(self, lane: ClientCalls, stream: int, headers: Headers, body: bytes) -> None:
        sender = lane.sender
        gzipped = _GZIP in headers
        try:
            message = _message(body, gzipped=gzipped)
            path = dict(headers).get(b":path", b"/").decode("latin-1")
            if path == _PULL:
                await self._pulls.run(lane, stream, message, gzipped=gzipped)
            elif self._windows is None:
                sender.out.append(_unknown(stream, path))
            elif self._windows.serves(path):
                await self._windows.run(lane, stream, path, message)
            elif path == _NOTIFY:
                # Pumps notify drainers. Sluice's pipeline serves no port of its own, and needs no
                # notice: it lists the pumps before it plans a window.
                sender.out.append(f.header_frames(stream, f.RESPONSE_HEADERS, end_stream=False))
                sender.queue(stream, _NOTIFIED)
                sender.finish(stream, f.header_frames(stream, f.OK_TRAILERS, end_stream=True))
            else:
                sender.out.append(_unknown(stream, path))
        except _UnreadableMessage as bad:
            sender.out.append(f.error_reply(stream, bad.status, str(bad)))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.exception("a call failed")
            sender.finish(stream, f.error_reply(stream, f.GRPC_INTERNAL, str(error)))
        finally:
            lane.ended(stream)


class _UnreadableMessage(Signal):
    """Report a body that isn't one readable message."""

    def __init__(self, text: str, status: int = f.GRPC_UNIMPLEMENTED) -> None:
        super().__init__(text)
        self.status = status


def _unknown(stream: int, path: str) -> bytes:
    return f.error_reply(stream, f.GRPC_UNIMPLEMENTED, f"unknown method {path[:200]}")


def _message(body: bytes, *, gzipped: bool) -> bytes:
    """Return the message in a body, expanded to at most `MAX_OTHER_MESSAGE_BYTES`."""
    if len(body) < 5 or body[0] > 1 or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise _UnreadableMessage("the call must carry one message")
    if not body[0]:
        return body[5:]
    if not gzipped:
        raise _UnreadableMessage("the message is compressed, and grpc-encoding isn't gzip")
    inflate = zlib.decompressobj(wbits=31)
    try:
        message = inflate.decompress(body[5:], MAX_OTHER_MESSAGE_BYTES + 1)
    except zlib.error as error:
        raise _UnreadableMessage(f"the message is no gzip: {error}", f.GRPC_INTERNAL) from None
    if len(message) > MAX_OTHER_MESSAGE_BYTES or not inflate.eof:
        text = (
            f"received message larger than max (more than {MAX_OTHER_MESSAGE_BYTES} bytes"
            " expanded), or cut off"
        )
        raise _UnreadableMessage(text, f.GRPC_RESOURCE_EXHAUSTED)
    return message
