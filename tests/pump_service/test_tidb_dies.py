"""A TiDB that dies between its Prewrite binlog and its prewrite holds readers up for seconds.

One that lives isn't touched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from sluice.pump_service.cluster.client_liveness import DISCONNECT_GRACE_S
from sluice.tidb.pd import PDClient
from sluice.tidb.tikv import TiKVClient, TxnKind
from tests.pump_service.pumpkit import Client, Etcd, PumpProcess
from tests.pump_service.tidb_stage import HERE, LEASE_S, Stage, fresh_cluster, staged, until


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    made = Etcd(tmp_path_factory.mktemp("etcd"))
    yield made
    made.stop()


@pytest.fixture
def stage(etcd: Etcd, tmp_path: Path) -> Iterator[Stage]:
    with staged(etcd, tmp_path / "pump") as made:
        yield made


@pytest.mark.slow
def test_after_a_tidb_died_before_its_prewrite_the_next_transactions_are_served_within_seconds(
    stage: Stage,
) -> None:
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
    stage.tidb("start", ttl_s=LEASE_S)
    stage.work()
    stage.readers_get(start_ts)
    assert stage.is_rolled_back("k", start_ts)


@pytest.mark.slow
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
    time.sleep(DISCONNECT_GRACE_S + 3)  # what a dead one is given that etcd no longer has, and more
    assert not stage.is_rolled_back("k", start_ts)
    assert stage.tidb("prewrite", start_ts=start_ts)["prewritten"]
    commit_ts = stage.tidb("commit", start_ts=start_ts)["commit_ts"]
    assert commit_ts > start_ts
    assert stage.reader.pull_commits(commit_ts - 1, 1)[0].start_ts == start_ts


@pytest.mark.slow
def test_a_dead_tidb_beside_a_living_one_at_the_same_address_waits_in_doubt(stage: Stage) -> None:
    start_ts = stage.begin("k")
    # so long it may come too late to keep its lease
    stage.begin("other", "127.0.0.1:4001", ttl_s=6)
    stage.tidb("kill")
    time.sleep(LEASE_S + DISCONNECT_GRACE_S + 3)
    assert not stage.is_rolled_back("k", start_ts)
    stage.tidb("kill", "127.0.0.1:4001")
    until(lambda: stage.is_rolled_back("k", start_ts))


@pytest.mark.slow
def test_a_tidb_that_was_taken_for_dead_has_its_prewrite_refused_and_tells_its_client(
    stage: Stage,
) -> None:
    start_ts = stage.begin("k")
    stage.tidb("isolate")  # from etcd and the pumps; TiKV is still there
    until(lambda: stage.is_rolled_back("k", start_ts))
    stage.tidb("reconnect")
    assert not stage.tidb("prewrite", start_ts=start_ts)["prewritten"]
    assert stage.tidb("commit", start_ts=start_ts)["commit_ts"] == 0
    stage.work()
    stage.readers_get(start_ts)


@pytest.mark.slow
def test_tikv_keeps_what_an_unfinished_transaction_needs_and_an_operator_may_decide_it(
    stage: Stage,
) -> None:
    stage.tidb("start", ttl_s=45)
    start_ts = stage.tidb("begin", key="k")["start_ts"]
    stage.pump.kill()
    stage.pump.start()
    until(lambda: stage.pd.update_service_gc_safe_point("probe", 60, stage.pd.tso()) == start_ts)
    base = f"http://{stage.pump.address}/verdict"
    assert httpx.put(f"{base}/{start_ts + 1}/rollback", timeout=60).status_code == 404
    # before it began
    assert httpx.put(f"{base}/{start_ts}/{start_ts}", timeout=60).status_code == 409
    assert (
        httpx.put(f"{base}/{start_ts}/{stage.pd.tso() + (60_000 << 18)}", timeout=60).status_code
        == 409
    )
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
    with (
        fresh_cluster(etcd) as site,
        PDClient(site.url, timeout_s=60) as pd,
        TiKVClient(pd) as tikv,
    ):
        pump = PumpProcess(SimpleNamespace(url=site.url), tmp_path / "p", "-prewrite-timeout", "2")  # type: ignore[arg-type]
        pump.start()
        site.post("/tidb", address=HERE, do="start", ttl_s=45)
        start_ts = site.post("/tidb", address=HERE, do="begin", key="k")["start_ts"]
        until(lambda: tikv.mvcc_get(b"k").status(start_ts).kind is TxnKind.ROLLED_BACK)
        pump.kill()


@pytest.mark.slow
def test_a_pump_that_stops_with_nothing_unfinished_holds_up_no_garbage_collection(
    stage: Stage,
) -> None:
    def registered() -> int:
        now = stage.pd.tso()
        return stage.pd.update_service_gc_safe_point("probe", 60, now) - now

    until(lambda: registered() < 0)
    assert stage.pump.terminate() == 0
    assert registered() == 0
