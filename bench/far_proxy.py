"""A TCP proxy in front of a server that delays, counts waits and breaks connections.

It makes the way long, and counts how often a client waits for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class FarProxy:
    """Listen on `port` of loopback as long as the context lasts, for a server on the port `to`.

    `delay_s`: the time that every byte is on its way, in each direction. `turns`: by connection,
    in the order in which they were opened, how often the client sent something behind what the
    server had sent: each such time it had waited for a round trip. `cut`, given the number of such
    turns over all connections, returns whether the connection breaks there: nothing of what the
    client sends reaches the server any more.
    """

    def __init__(
        self, to: int, delay_s: float = 0.0, cut: Callable[[int], bool] = lambda _: False
    ) -> None:
        self.to = to
        self.delay_s = delay_s
        self.cut = cut
        self.turns: list[int] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(60)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.break_all()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def break_all(self) -> None:
        """Break every connection that is open."""

        async def close() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(60)

    async def _end(self) -> None:
        self._server.close()
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, forth}
        self._writers |= pair
        number = len(self.turns)
        self.turns.append(0)
        answered = [True]

        def sent() -> bool:
            """Count a turn of the client; return False if the connection is to be cut."""
            if answered[0]:
                answered[0] = False
                self.turns[number] += 1
                return not self.cut(sum(self.turns))
            return True

        def came() -> bool:
            answered[0] = True
            return True

        try:
            # Not gather: it forgets a direction when the other one fails, and nothing else refers
            # to that task, so it would be collected in the middle.
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._carry(reader, forth, sent))
                directions.create_task(self._carry(back, writer, came))
        except* (OSError, _Cut):
            pass
        finally:
            for one in pair:
                one.transport.abort()
            self._writers -= pair

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[], bool]
    ) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(self._deliver(under_way, writer))
        try:
            while data := await reader.read(1 << 18):
                if not seen():
                    raise _Cut
                under_way.put_nowait((self._loop.time() + self.delay_s, data))
            under_way.put_nowait((self._loop.time() + self.delay_s, b""))
            await delivering
        finally:
            delivering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await delivering

    async def _deliver(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await under_way.get()
            if (wait := due - self._loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                writer.transport.abort()
                return
            writer.write(data)
            await writer.drain()


class _Cut(Exception):
    """The connection breaks here."""
