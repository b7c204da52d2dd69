"""Answers a call that isn't WriteBinlog on a lane connection: PullBinlogs and those of sluice.Window itself,
any other by making it again at the grpcio server behind the port.

A client's first call decides what its connection is for, so the latter only happens to a client that writes or pulls
binlogs and then makes other calls on the same connection. Requests are one message; answers may be streams, sent as the
client's flow-control windows allow.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence

import grpc
import grpc.aio

from pump_service.calls.pulls import Pulls
from pump_service.calls.windows import Windows
from pump_service.lane import Connection
from pump_service.lane import frames as f
from pump_service.lane.hpack import Header, Headers

_log = logging.getLogger(__name__)

_HOP = {b"te", b"content-type", b"user-agent", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"}
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Bridge:
    """`bridge(lane, stream, headers, body)` starts a task that answers the stream; cancel it to cancel the call."""

    def __init__(self, address: str, pulls: Pulls, windows: Windows | None) -> None:
        """`windows`: None to leave sluice.Window to the server at `address`."""
        self._address = address
        self._pulls = pulls
        self._windows = windows
        self._channel: grpc.aio.Channel | None = None

    def __call__(self, lane: Connection, stream: int, headers: Sequence[Header], body: bytes) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run(lane, stream, tuple(headers), body))

    def stop(self) -> None:
        """End what waits for something to happen. In the loop's thread."""
        if self._windows is not None:
            self._windows.stop()

    async def close(self) -> None:
        """Close the channel."""
        self.stop()
        if self._channel is not None:
            await self._channel.close()

    async def _run(self, lane: Connection, stream: int, headers: Headers, body: bytes) -> None:
        sender = lane.sender
        try:
            if len(body) < 5 or body[0] or int.from_bytes(body[1:5], "big") != len(body) - 5:
                text = "the call must carry one message, not compressed"
                sender.out.append(f.error_reply(stream, f.GRPC_UNIMPLEMENTED, text))
                return
            path = dict(headers).get(b":path", b"/").decode("latin-1")
            if path == "/binlog.Pump/PullBinlogs":
                await self._pulls.run(lane, stream, body[5:])
                return
            if self._windows is not None and self._windows.serves(path):
                await self._windows.run(lane, stream, path, body[5:])
                return
            if self._channel is None:
                options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
                self._channel = grpc.aio.insecure_channel(self._address, options=options)
            call = self._channel.unary_stream(path)(body[5:], metadata=_metadata(headers), timeout=_timeout(headers))
            await self._relay(lane, stream, call)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.exception("a bridged call failed")
            sender.finish(stream, f.error_reply(stream, f.GRPC_INTERNAL, str(error)))
        finally:
            lane.ended(stream)

    async def _relay(self, lane: Connection, stream: int, call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> None:
        sender = lane.sender
        started = False
        try:
            initial = await call.initial_metadata()
            async for message in call:
                if not started:
                    started = True
                    extra = _headers(tuple(initial))
                    sender.out.append(f.header_frames(stream, f.RESPONSE_HEADERS + extra, end_stream=False))
                sender.queue(stream, b"\0" + len(message).to_bytes(4, "big") + message)
                lane.flush()
                await lane.sent(stream)
        except grpc.aio.AioRpcError:
            pass  # its status is read below
        finally:
            if not call.done():
                call.cancel()
        status = await call.code()
        trailers: Headers = ((b"grpc-status", b"%d" % status.value[0]),)
        details = await call.details()
        if details:
            trailers += ((b"grpc-message", f.percent(details)),)
        trailers += _headers(tuple(await call.trailing_metadata() or ()))
        if not started:
            trailers = f.RESPONSE_HEADERS + trailers
        sender.finish(stream, f.header_frames(stream, trailers, end_stream=True))


def _metadata(headers: Headers) -> list[tuple[str, str | bytes]]:
    out: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name.startswith(b":") or name in _HOP:
            continue
        if name.endswith(b"-bin"):
            try:
                out.append((name.decode("ascii"), base64.b64decode(value + b"=" * (-len(value) % 4))))
            except (binascii.Error, ValueError):
                continue
        else:
            out.append((name.decode("ascii"), value.decode("latin-1")))
    return out


def _headers(metadata: Sequence[tuple[str, str | bytes]]) -> Headers:
    out: list[Header] = []
    for name, value in metadata:
        if name in ("content-type", "grpc-status", "grpc-message"):
            continue
        raw = value.encode("latin-1") if isinstance(value, str) else base64.b64encode(value).rstrip(b"=")
        out.append((name.encode("ascii"), raw))
    return tuple(out)


def _timeout(headers: Headers) -> float | None:
    value = dict(headers).get(b"grpc-timeout", b"")
    unit = _UNITS.get(value[-1:])
    return int(value[:-1]) * unit if unit is not None and value[:-1].isdigit() else None
