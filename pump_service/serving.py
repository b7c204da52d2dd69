"""Serve the pump's address: an event loop in a thread of its own, the listener and its calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from sluice.errors import SluiceError
from sluice.pump_service.calls import RpcRouter
from sluice.pump_service.config import Config, split_addr
from sluice.pump_service.grpc_fastpath import FastPathLimits, FastPathServer
from sluice.pump_service.http import Http1Connection, HttpApi
from sluice.pump_service.ingest import BinlogIngest
from sluice.pump_service.listener import Listener, max_connection_descriptors, server_context

_CALL_TIMEOUT_S = 30
_SETTLE_TIMEOUT_S = 10
_DRAIN_TIMEOUT_S = 3.0


class StartError(SluiceError):
    """Report that the pump can't start; the message is for the operator."""

    hint = "fix the cause above, then start the pump again"


class ServedAddress:
    """One address for binlogs, windows and pages; `bind`, then `serve`, then `close`."""

    def __init__(self, config: Config, router: RpcRouter) -> None:
        self._config = config
        self._router = router
        self.address = ""
        """The bound host:port."""
        self._closers = contextlib.ExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="pump-loop", daemon=True
        )
        self._thread.start()
        self._closers.callback(self._end_loop)

    def bind(self, api: HttpApi, ingest: BinlogIngest) -> None:
        """Listen at the settings' address and socket. Raises StartError."""
        self._call(self._bind(api, ingest))

    def serve(self) -> None:
        """Begin to accept connections."""
        self._call(self.listener.serve())

    def settle(self) -> None:
        """Return once the store has every Prewrite that was admitted before this call."""
        # After this turn of the loop it has.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(_SETTLE_TIMEOUT_S)

    def drain(self) -> Future[None]:
        """Accept nothing more, and begin to answer what has come."""
        return asyncio.run_coroutine_threadsafe(self._drain(), self._loop)

    def close(self) -> None:
        """End all connections and the loop."""
        self._closers.close()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_TIMEOUT_S)

    async def _bind(self, api: HttpApi, ingest: BinlogIngest) -> None:
        config = self._config
        self._closers.callback(api.close)
        self.listener = Listener(lambda roles: Http1Connection(api.handle, roles), config.security)
        limits = replace(FastPathLimits(), message=config.max_message_size)
        self.lanes = FastPathServer(
            self._loop, ingest, limits, self._router, max_connection_descriptors()
        )
        self.listener.use(self.lanes)
        self._maintenance = self._loop.create_task(self.lanes.run_maintenance())
        host, port = split_addr(config.addr)
        tls = server_context(config.security)
        try:
            bound = await self.listener.listen(host, port, tls)
        except OSError as error:
            raise StartError(
                f"can't listen on {config.addr} (setting addr): {error.strerror or error}"
            ) from None
        self.address = f"{bound[0]}:{bound[1]}"
        self._closers.callback(lambda: self._call(self._end()))
        if config.socket:
            try:
                await self.listener.listen_unix(config.socket)
            except OSError as error:
                raise StartError(
                    f"can't listen on {config.socket} (setting socket): {error.strerror or error}"
                ) from None

    async def _end(self) -> None:
        self._maintenance.cancel()
        self.listener.stop_accepting()
        self._router.stop()
        self.listener.close_all()

    async def _drain(self) -> None:
        self.listener.stop_accepting()
        self._router.stop()
        await self.lanes.drain(_DRAIN_TIMEOUT_S)
