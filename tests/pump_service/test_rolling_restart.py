"""Pumps are started again one at a time under a steady writer: no WriteBinlog fails, and nothing is
lost or doubled.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from sluice.pump_service.config import Config
from sluice.pump_service.server import PumpServer
from sluice.pump_service.store import StoreOptions
from sluice.tidb.pumps import PumpClient
from tests.ports import free_port
from tests.pump_service.pumpkit import CLUSTER, Client, Site, binlog
from tests.pump_service.storekit import eventually

PUMPS = 2
WRITERS = 4


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


class SteadyWriter:
    """Transactions one behind the other on some threads, as TiDB writes them: a Prewrite that a
    pump refuses goes to another, the Commit goes where the Prewrite went.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._client = PumpClient(site.registry, CLUSTER)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.committed: dict[int, int] = {}
        """start_ts by commit_ts."""
        self.by_pump: Counter[str] = Counter()
        self.failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, number: int) -> None:
        while not self._stop.is_set():
            try:
                start = self._site.pd.ts()
                took = self._client.prewrite(start, binlog(0, start, value=b"%d" % number))
                commit = self._site.pd.ts()
                self._client.finish(start, binlog(1, start, commit))
                with self._lock:
                    self.committed[commit] = start
                    self.by_pump[took] += 1
            except Exception as error:
                self.failed.append(error)
                return

    def wait_for(self, node_id: str, more: int = 5) -> None:
        """Until a pump has taken some more transactions."""
        before = self.by_pump[node_id]
        eventually(lambda: bool(self.failed) or self.by_pump[node_id] >= before + more)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        self._client.close()


def readable(site: Site, after: int) -> list[tuple[int, int]]:
    """(commit_ts, start_ts) of every transaction on the pumps."""
    found = []
    for pump in site.pumps:
        client = Client(pump.address)
        last = client.transaction(site.pd, b"last")[1]
        for response in client.pull(after):
            meta = response.entity.meta
            if meta.startTs != meta.commitTs and meta.commitTs < last:
                found.append((meta.commitTs, meta.startTs))
            if meta.commitTs >= last:
                break
        client.close()
    return found


@pytest.mark.slow
def test_a_rolling_restart_fails_no_write_and_loses_and_doubles_nothing(site: Site) -> None:
    after = site.pd.ts()
    for number in range(PUMPS):
        site.pump(f"pump-{number}", "-heartbeat-interval", "0.3")
    writer = SteadyWriter(site)
    try:
        for pump in site.pumps:
            writer.wait_for(pump.node_id)
            assert pump.terminate() == 0  # with calls in flight
            assert site.entry(pump).state == "paused"
            pump.start()
            eventually(lambda pump=pump: site.entry(pump).state == "online")
            writer.wait_for(pump.node_id)
    finally:
        writer.end()
    assert writer.failed == []
    found = readable(site, after)
    lasts = {commit: start for commit, start in found if commit not in writer.committed}
    assert len(lasts) < PUMPS, "only what tells the end"
    assert sorted(pair for pair in found if pair[0] in writer.committed) == sorted(
        writer.committed.items()
    )


def test_a_pump_that_leaves_takes_prewrites_until_writers_had_time_to_hear_of_it(
    site: Site,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = StoreOptions(stop_write_at_available_space=0)
    config = Config(
        addr=address,
        advertise_addr=address,
        pd_urls=site.pd.url,
        node_id="one",
        storage=options,
        data_dir=str(site.folder / "pump"),
    )
    pump = PumpServer(config)
    pump.notice_s = 3600
    pump.start()
    client = Client(address)
    pump.leave("pause")
    eventually(
        lambda: (found := site.registry.get_pump("one")) is not None and found.state == "pausing"
    )
    start = site.pd.ts()
    client.write(binlog(0, start, value=b"of a TiDB that hasn't heard of it yet"))
    client.write(binlog(1, start, site.pd.ts()))
    client.write(b"")  # a probe
    assert (
        httpx.get(f"http://{address}/status", timeout=60).json()["status"]["one"]["state"]
        == "pausing"
    )
    pump.hurry()
    eventually(lambda: pump.wait(0.01))
    with pytest.raises(grpc.RpcError):
        client.write(b"", timeout=5)
    assert site.registry.get_pump("one").state == "paused"
    client.close()
