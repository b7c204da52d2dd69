"""Keys in etcd that live only as long as their lease is kept alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import grpc

from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.rpc import target


class EtcdLease:
    """LeaseGrant, LeaseKeepAlive and LeaseRevoke of etcd; their messages are a few varints."""

    def __init__(self, url: str, ttl_s: int) -> None:
        """Keep the options; etcd makes a `ttl_s` of less than two seconds two."""
        self._ttl_s = ttl_s
        self._channel = grpc.aio.insecure_channel(target(url))
        self._id = 0
        self._keeper: asyncio.Task[None] | None = None

    async def put(self, keys: Mapping[str, bytes], *, leased: bool) -> None:
        """Write keys, under the lease or for good."""
        if not self._id:
            answer = await self._channel.unary_unary("/etcdserverpb.Lease/LeaseGrant")(
                b"\x08" + encode_uvarint(self._ttl_s)
            )
            self._id = _varint(answer, 2)
            self._keeper = asyncio.create_task(self._keep_alive())
        call = self._channel.unary_unary("/etcdserverpb.KV/Put")
        for key, value in keys.items():
            request = pb.etcd.PutRequest(
                key=key.encode(), value=value, lease=self._id if leased else 0
            )
            await call(request.SerializeToString())

    async def release(self) -> None:
        """Keep the lease alive no more: etcd removes the keys when its time is up.

        A second call does nothing.
        """
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
            await self._channel.close()

    async def _keep_alive(self) -> None:
        async def beats() -> AsyncIterator[bytes]:
            while True:
                yield b"\x08" + encode_uvarint(self._id)
                await asyncio.sleep(self._ttl_s / 3)

        async for _ in self._channel.stream_stream("/etcdserverpb.Lease/LeaseKeepAlive")(beats()):
            pass


def _varint(message: bytes, wanted: int) -> int:
    """Return a varint field of a flat message."""
    pos = 0

    def read() -> int:
        nonlocal pos
        value = shift = 0
        while True:
            byte = message[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while pos < len(message):
        tag = read()
        value = read()
        if tag & 7 == 2:
            pos += value
        elif tag >> 3 == wanted:
            return value
    raise ValueError(f"no field {wanted} in {message.hex()}")
