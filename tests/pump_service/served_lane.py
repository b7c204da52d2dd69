"""A lane behind a front in this process, over a real store: for tests of the bounds of both."""

import asyncio
import threading

import pytest

from sluice.pump_service.config import Security
from sluice.pump_service.grpc_fastpath import FastPathServer
from sluice.pump_service.ingest import AdmissionRules, BinlogIngest
from sluice.pump_service.listener import Listener
from sluice.pump_service.metrics import PumpMetrics
from sluice.pump_service.store import Store, StoreOptions
from tests.pump_service.pumpkit import CLUSTER, no_origins, time_limit
from tests.pump_service.rawhttp2 import RawClient


class ServedLane:
    """A front with a lane, in a loop of its own."""

    def __init__(self, folder, limits):
        self.store = Store.open(folder, StoreOptions(stop_write_at_available_space=0))
        self.state = "online"
        ingest = BinlogIngest(
            AdmissionRules(CLUSTER, lambda: self.state, time_limit()),
            self.store,
            PumpMetrics(),
            no_origins(),
        )
        self.loop = asyncio.new_event_loop()
        self.front = Listener(lambda _: pytest.fail("no HTTP/1 here"), Security())
        self.context = FastPathServer(
            self.loop, ingest, limits, lambda *_: pytest.fail("no bridge")
        )
        self.front.use(self.context)
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        host, port = self.run(self.front.listen("127.0.0.1", 0, None))
        self.run(self.front.serve())
        self.address = f"{host}:{port}"
        self.client = RawClient(self.address)

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self):
        self.client.close()
        self.run(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        self.store.close()

    async def _end(self):
        self.front.stop_accepting()
        self.front.close_all()
        await asyncio.sleep(0.05)
