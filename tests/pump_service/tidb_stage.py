"""A pump beside a stand-in cluster whose TiDB servers take each step when a test says so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

from sluice.tidb.etcd import EtcdClient
from sluice.tidb.pd import PDClient
from sluice.tidb.tikv import TiKVClient, TxnKind
from tests.devstack.cluster_harness import ClusterProcess, cluster
from tests.pump_service.pumpkit import CLUSTER, Client, Etcd, PumpProcess
from tests.tidb.etcd_fixture import remove_all

HERE = "127.0.0.1:4000"
LEASE_S = 2


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it didn't come to pass"
        time.sleep(0.1)


class Stage:
    """A pump, and a cluster whose TiDB servers do what they are told."""

    def __init__(self, site: ClusterProcess, pump: PumpProcess) -> None:
        self.site, self.pump = site, pump
        self.pd = PDClient(site.url, timeout_s=60)
        self.tikv = TiKVClient(self.pd)
        self.reader = Client(pump.address)
        self.worked = False

    def tidb(self, do: str, address: str = HERE, **more: object) -> dict[str, int]:
        answer = self.site.post("/tidb", address=address, do=do, **more)
        assert "error" not in answer, answer
        return answer

    def begin(self, key: str, address: str = HERE, ttl_s: int = LEASE_S) -> int:
        """A TiDB whose transaction is in the pump and not in TiKV.

        The pump knows where it came from.
        """
        self.tidb("start", address, ttl_s=ttl_s)
        start_ts = self.tidb("begin", address, key=key)["start_ts"]
        until(lambda: f"a TiDB there is {address}" in self.pump.text())
        return start_ts

    def is_rolled_back(self, key: str, start_ts: int) -> bool:
        return self.tikv.mvcc_get(key.encode()).status(start_ts).kind is TxnKind.ROLLED_BACK

    def readers_get(self, start_ts: int) -> None:
        """Transactions that began later come out, long before another's ten minutes are over."""
        found = self.reader.pull_commits(start_ts, 3, timeout=120)
        assert len(found) == 3
        assert all(binlog.commit_ts > start_ts for binlog in found)

    def work(self) -> None:
        assert self.site.post("/workload", transactions=5, rate="max")["state"] in (
            "preparing",
            "running",
            "done",
        )
        self.worked = True

    def close(self) -> None:
        if self.worked:  # without its pump the rest would be waited for at the end
            until(lambda: self.site.get("/workload")["state"] == "done")
        self.reader.close()
        self.tikv.close()
        self.pd.close()


@contextlib.contextmanager
def fresh_cluster(etcd: Etcd) -> Iterator[ClusterProcess]:
    """A cluster of which etcd knows nothing else."""
    url = f"http://127.0.0.1:{etcd.port}"
    with EtcdClient(url, timeout_s=60) as client:
        for prefix in ("/tidb-binlog/", "/topology/", "/tidb/"):
            remove_all(client, prefix)
    with cluster(url, None, "--cluster-id", str(CLUSTER)) as site:
        yield site


@contextlib.contextmanager
def staged(etcd: Etcd, data_dir: Path) -> Iterator[Stage]:
    """A fresh cluster and a pump that keeps what it takes in `data_dir`."""
    with fresh_cluster(etcd) as site:
        pd = SimpleNamespace(url=site.url)
        pump = PumpProcess(pd, data_dir, "-heartbeat-interval", "0.3")  # type: ignore[arg-type]
        pump.start()
        made = Stage(site, pump)
        yield made
        made.close()
        pump.kill()
