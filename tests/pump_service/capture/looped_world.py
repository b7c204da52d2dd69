"""A stand-in TiKV of two stores on an event loop in a thread of its own."""

import asyncio
import threading

from tests.devstack.tidb.change_world import World

TIMEOUT_S = 60


class LoopedWorld:
    """Reach `world` by `do` and `on_loop`; `splits` are raw keys at which regions begin."""

    def __init__(self, splits, credentials=None):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.world = self.on_loop(self._made(splits, credentials))

    async def _made(self, splits, credentials):
        made = World(2, splits, credentials)
        await made.start()
        return made

    def on_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_S)

    def do(self, call, *arguments, **more):
        """Call something of the world on its loop."""

        async def called():
            return call(*arguments, **more)

        return self.on_loop(called())

    def close(self):
        self.on_loop(self.world.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
