"""A TiDB that dies between its Prewrite binlog and its prewrite holds readers up for seconds; one that lives isn't
touched.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from pump_service.cluster.origins import GRACE_S
from tests.embedded.cluster_harness import ClusterProcess, cluster
from tests.pump_service.pumpkit import CLUSTER, Client, Etcd, PumpProcess
from tests.upstream.etcd_fixture import remove_all
from upstream.etcd import EtcdClient
from upstream.pd import PDClient
from upstream.tikv import TiKVClient, TxnKind

_HERE = "127.0.0.1:4000"
_LEASE_S = 2


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

    def tidb(self, do: str, address: str = _HERE, **more: object) -> dict[str, int]:
        answer = self.site.post("/tidb", address=address, do=do, **more)
        assert "error" not in answer, answer
        return answer

    def begin(self, key: str, address: str = _HERE, ttl_s: int = _LEASE_S) -> int:
        """A TiDB whose transaction is in the pump and not in TiKV; the pump knows where it came from."""
        self.tidb("start", address, ttl_s=ttl_s)
        start_ts = self.tidb("begin", address, key=key)["start_ts"]
        until(lambda: f"a TiDB there is {address}" in self.pump.text())
        return start_ts

    def is_rolled_back(self, key: str, start_ts: int) -> bool:
        return self.tikv.mvcc_get(key.encode()).status(start_ts).kind is TxnKind.ROLLED_BACK

    def readers_get(self, start_ts: int) -> None:
        """Transactions that began later come out, long before a transaction's ten minutes are over."""
        found = self.reader.pull_commits(start_ts, 3, timeout=120)
        assert len(found) == 3
        assert all(binlog.commit_ts > start_ts for binlog in found)

    def work(self) -> None:
        assert self.site.post("/workload", transactions=5, rate="max")["state"] in ("preparing", "running", "done")
        self.worked = True

    def close(self) -> None:
        if self.worked:  # without its pump the rest would be waited for at the end
            until(lambda: self.site.get("/workload")["state"] == "done")
        self.reader.close()
        self.tikv.close()
        self.pd.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    made = Etcd(tmp_path_factory.mktemp("etcd"))
    yield made
    made.stop()


@contextlib.contextmanager
def _cluster(etcd: Etcd) -> Iterator[ClusterProcess]:
    url = f"http://127.0.0.1:{etcd.port}"
    with EtcdClient(url, timeout_s=60) as client:
        for prefix in ("/tidb-binlog/", "/topology/", "/tidb/"):
            remove_all(client, prefix)
    with cluster(url, None, "--cluster-id", str(CLUSTER)) as site:
        yield site


@pytest.fixture
def stage(etcd: Etcd, tmp_path: Path) -> Iterator[Stage]:
    with _cluster(etcd) as site:
        pd = SimpleNamespace(url=site.url)
        pump = PumpProcess(pd, tmp_path / "pump", "-heartbeat-interval", "0.3")  # type: ignore[arg-type]
        pump.start()
        made = Stage(site, pump)
        yield made
        made.close()
        pump.kill()


def test_after_a_tidb_died_before_its_prewrite_the_next_transactions_are_served_within_seconds(stage: Stage) -> None:
    start_ts = stage.begin("k")
    stage.tidb("kill")
    stage.work()
    stage.readers_get(start_ts)
    assert stage.is_rolled_back("k", start_ts)


@pytest.mark.slow
def test_a_tidb_that_started_again_at_its_address_is_another_one(stage: Stage) -> None:
    start_ts = stage.begin("k")
    stage.tidb("kill")
    time.sleep(1)  # start_timestamp is in seconds
    stage.tidb("start", ttl_s=_LEASE_S)
    stage.work()
    stage.readers_get(start_ts)
    assert stage.is_rolled_back("k", start_ts)


def test_a_lock_of_a_dead_tidb_is_given_its_time_and_no_more(stage: Stage) -> None:
    start_ts = stage.begin("k")
    assert stage.tidb("prewrite", start_ts=start_ts)["prewritten"]
    stage.tidb("kill")
    stage.work()
    stage.readers_get(start_ts)
    assert stage.is_rolled_back("k", start_ts)


@pytest.mark.slow
def test_a_tidb_that_only_lost_its_connection_is_not_rolled_back(stage: Stage) -> None:
    start_ts = stage.begin("k", ttl_s=30)
    stage.tidb("reconnect")
    stage.work()
    time.sleep(GRACE_S + 3)  # what a dead one is given that etcd no longer has, and more
    assert not stage.is_rolled_back("k", start_ts)
    assert stage.tidb("prewrite", start_ts=start_ts)["prewritten"]
    commit_ts = stage.tidb("commit", start_ts=start_ts)["commit_ts"]
    assert commit_ts > start_ts
    assert stage.reader.pull_commits(commit_ts - 1, 1)[0].start_ts == start_ts


@pytest.mark.slow
def test_a_dead_tidb_beside_a_living_one_at_the_same_address_waits_in_doubt(stage: Stage) -> None:
    start_ts = stage.begin("k")
    stage.begin("other", "127.0.0.1:4001", ttl_s=6)  # so long it may come too late to keep its lease
    stage.tidb("kill")
    time.sleep(_LEASE_S + GRACE_S + 3)
    assert not stage.is_rolled_back("k", start_ts)
    stage.tidb("kill", "127.0.0.1:4001")
    until(lambda: stage.is_rolled_back("k", start_ts))


def test_a_tidb_that_was_taken_for_dead_has_its_prewrite_refused_and_tells_its_client(stage: Stage) -> None:
    start_ts = stage.begin("k")
    stage.tidb("isolate")  # from etcd and the pumps; TiKV is still there
    until(lambda: stage.is_rolled_back("k", start_ts))
    stage.tidb("reconnect")
    assert not stage.tidb("prewrite", start_ts=start_ts)["prewritten"]
    assert stage.tidb("commit", start_ts=start_ts)["commit_ts"] == 0
    stage.work()
    stage.readers_get(start_ts)


def test_tikv_keeps_what_an_unfinished_transaction_needs_and_an_operator_may_decide_it(stage: Stage) -> None:
    stage.tidb("start", ttl_s=45)
    start_ts = stage.tidb("begin", key="k")["start_ts"]
    stage.pump.kill()
    stage.pump.start()
    until(lambda: stage.pd.update_service_gc_safe_point("probe", 60, stage.pd.tso()) == start_ts)
    base = f"http://{stage.pump.address}/verdict"
    assert httpx.put(f"{base}/{start_ts + 1}/rollback", timeout=60).status_code == 404
    assert httpx.put(f"{base}/{start_ts}/{start_ts}", timeout=60).status_code == 409  # before it began
    assert httpx.put(f"{base}/{start_ts}/{stage.pd.tso() + (60_000 << 18)}", timeout=60).status_code == 409
    assert httpx.put(f"{base}/{start_ts}/never", timeout=60).status_code == 400
    commit_ts = stage.pd.tso()
    assert httpx.put(f"{base}/{start_ts}/{commit_ts}", timeout=60).status_code == 200
    reader = Client(stage.pump.address)
    assert reader.pull_commits(commit_ts - 1, 1, timeout=60)[0].start_ts == start_ts
    reader.close()
    assert httpx.put(f"{base}/{start_ts}/rollback", timeout=60).status_code == 404


@pytest.mark.slow
def test_the_time_a_prewrite_is_given_can_be_set(etcd: Etcd, tmp_path: Path) -> None:
    """In doubt, as for a client that etcd doesn't know, only time decides."""
    with _cluster(etcd) as site, PDClient(site.url, timeout_s=60) as pd, TiKVClient(pd) as tikv:
        pump = PumpProcess(SimpleNamespace(url=site.url), tmp_path / "p", "-prewrite-timeout", "2")  # type: ignore[arg-type]
        pump.start()
        site.post("/tidb", address=_HERE, do="start", ttl_s=45)
        start_ts = site.post("/tidb", address=_HERE, do="begin", key="k")["start_ts"]
        until(lambda: tikv.mvcc_get(b"k").status(start_ts).kind is TxnKind.ROLLED_BACK)
        pump.kill()


def test_a_pump_that_stops_with_nothing_unfinished_holds_up_no_garbage_collection(stage: Stage) -> None:
    def registered() -> int:
        now = stage.pd.tso()
        return stage.pd.update_service_gc_safe_point("probe", 60, now) - now

    until(lambda: registered() < 0)
    assert stage.pump.terminate() == 0
    assert registered() == 0
