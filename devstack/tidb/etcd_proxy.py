"""Serve etcd on PD's client port, as PD does.

Calls of etcd's services are passed to a real etcd, byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc

from sluice.tidb.rpc import CHANNEL_OPTIONS, target

_SERVICES = ("/etcdserverpb.", "/v3lockpb.", "/v3electionpb.")
_NOT_PASSED_ON = ("user-agent", "grpc-", "te", "content-type")


class EtcdProxy(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc is untyped
    """Forward every call of etcd's services to `url`.

    Unary calls are streams of one message on the wire.
    """

    def __init__(self, url: str) -> None:
        self._channel = grpc.aio.insecure_channel(target(url), options=list(CHANNEL_OPTIONS))

    async def close(self) -> None:
        """Cut what is still being forwarded."""
        await self._channel.close()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method
        if not method.startswith(_SERVICES):
            return None

        async def forward(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[bytes]:
            metadata = [
                (key, value)
                for key, value in context.invocation_metadata() or ()
                if not key.startswith(_NOT_PASSED_ON)
            ]
            call = self._channel.stream_stream(method)(
                metadata=metadata, timeout=context.time_remaining()
            )
            sender = asyncio.create_task(_send(requests, call))
            try:
                async for response in call:
                    yield response
                context.set_trailing_metadata(tuple(await call.trailing_metadata() or ()))
            except grpc.aio.AioRpcError as error:
                await context.abort(
                    error.code(), error.details() or "", tuple(error.trailing_metadata() or ())
                )
            finally:
                sender.cancel()
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(forward)


async def _send(
    requests: AsyncIterator[bytes], call: grpc.aio.StreamStreamCall[bytes, bytes]
) -> None:
    # A call that etcd has ended is reported by its reading side.
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        async for request in requests:
            await call.write(request)
        await call.done_writing()
