"""The pump client against pumps that fail, hang, die and come back, listed in a real etcd."""

import dataclasses
import threading
import time
from collections import Counter
from concurrent.futures import wait

import pytest

from sluice.tidb import pb
from sluice.tidb.etcd import EtcdClient, Registry
from sluice.tidb.pumps import PumpClient, PumpWriteError, WriteTimes
from tests.tidb.wire_pump import CLUSTER_ID, Pump, binlog, commit, prewrite

P, C, R = pb.binlog.Prewrite, pb.binlog.Commit, pb.binlog.Rollback


@pytest.fixture
def registry(etcd_url):
    with EtcdClient(etcd_url, timeout_s=60) as etcd:
        yield Registry(etcd)


@pytest.fixture
def pumps(registry):
    found = [Pump("a"), Pump("b"), Pump("c")]
    for pump in found:
        registry.register_pump(pump.status)
    yield found
    for pump in found:
        pump.behaviour = "ok"
        pump.stop()


@pytest.fixture
def client_of(registry):
    """Opens clients that look soon whether a pump is back, and closes them."""
    opened = []

    def open_one(**settings):
        times = {name: settings.pop(name) for name in ("write_s", "finish_s") if name in settings}
        patience = WriteTimes(**({"write_s": 60.0, "finish_s": 60.0, "probe_s": 0.1} | times))
        opened.append(PumpClient(registry, CLUSTER_ID, times=patience, **settings))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def _until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not within the time"
        time.sleep(0.01)


def test_range_goes_round_and_a_commit_follows_its_prewrite(pumps, client_of):
    client = client_of()
    for ts in range(100, 130):
        client.prewrite(ts, prewrite(ts))
    for ts in range(129, 99, -1):
        if ts % 2:
            client.finish(ts, commit(ts))
        else:
            client.finish(ts, binlog(R, ts))
    for pump in pumps:
        assert len(pump.kinds(P)) == 10
        assert sorted(pump.kinds(P)) == sorted(pump.kinds(C) + pump.kinds(R))


def test_payloads_arrive_byte_for_byte(pumps, client_of):
    payload = binlog(P, 5, prewrite_key=b"\x00\xff", prewrite_value=bytes(3_000_000), ddl_query=b"")
    assert client_of().prewrite(5, payload) == "a"
    assert pumps[0].written[0].SerializeToString() == payload


def test_hash_puts_a_transaction_where_every_client_would(pumps, client_of):
    first, second = client_of(strategy="hash"), client_of(strategy="hash")
    for ts in range(60):
        assert (
            first.prewrite(ts, prewrite(ts)) == second.prewrite(ts, prewrite(ts)) == "abc"[ts % 3]
        )


def test_score_shares_in_proportion_and_without_scores_evenly(pumps, registry, client_of):
    client = client_of(strategy="score")
    assert Counter(client.prewrite(ts, prewrite(ts)) for ts in range(30)) == {
        "a": 10,
        "b": 10,
        "c": 10,
    }
    registry.register_pump(dataclasses.replace(pumps[0].status, score=3))
    registry.register_pump(dataclasses.replace(pumps[1].status, score=1))
    _until(lambda: [client._pool._nodes[name].status.score for name in "ab"] == [3, 1])
    assert Counter(client.prewrite(ts, prewrite(ts)) for ts in range(100, 140)) == {
        "a": 30,
        "b": 10,
    }


def test_an_unknown_strategy_is_refused(pumps, registry):
    with pytest.raises(ValueError, match=r"'fastest'.*range, hash, score"):
        PumpClient(registry, CLUSTER_ID, strategy="fastest")


def test_without_a_pump_there_is_no_client(registry):
    with pytest.raises(PumpWriteError, match="no pump is registered"):
        PumpClient(registry, CLUSTER_ID)


@pytest.mark.parametrize("behaviour", ["error", "errmsg", "hang"])
def test_a_prewrite_moves_on_from_a_pump_that_fails(pumps, client_of, behaviour):
    client = client_of(write_s=1.0)
    pumps[0].behaviour = behaviour
    for ts in range(6):
        assert client.prewrite(ts, prewrite(ts)) in "bc"
    assert {*pumps[1].kinds(P), *pumps[2].kinds(P)} == set(range(6))


def test_a_pump_that_keeps_failing_gets_no_more_prewrites_until_a_probe_succeeds(pumps, client_of):
    client = client_of()
    pumps[1].behaviour = "error"
    futures = [client.prewrite_async(ts, prewrite(ts)) for ts in range(60)]
    wait(futures, timeout=60)
    assert {future.result() for future in futures} == {"a", "c"}
    assert client.available_pumps() == ["a", "c"]
    _until(lambda: pumps[1].calls["probe"] >= 2)
    writes = pumps[1].calls["write"]
    assert {client.prewrite(ts, prewrite(ts)) for ts in range(100, 110)} == {"a", "c"}
    assert pumps[1].calls["write"] == writes
    pumps[1].behaviour = "ok"
    _until(lambda: client.available_pumps() == ["a", "b", "c"])
    assert "b" in {client.prewrite(ts, prewrite(ts)) for ts in range(200, 203)}
    assert pumps[1].kinds(P)  # the probes themselves wrote nothing
    assert all(ts >= 200 for ts in pumps[1].kinds(P))


def test_a_prewrite_that_nobody_takes_fails_in_time_with_the_last_error(pumps, client_of):
    for pump in pumps:
        pump.behaviour = "error"
    for write_s in (0.5, 5, 50):  # so long that the pumps have answered
        client = client_of(write_s=write_s)
        begin = time.monotonic()
        with pytest.raises(
            PumpWriteError, match=r"last error: Prewrite of transaction 7 to pump "
        ) as caught:
            client.prewrite(7, prewrite(7))
        assert write_s <= time.monotonic() - begin < write_s + 100
        if "no available space" in str(caught.value):
            break
    assert "no available space" in str(caught.value)
    with pytest.raises(PumpWriteError, match="transaction 7: no pump has acknowledged"):
        client.finish(7, commit(7))


def test_a_binlog_that_is_too_large_fails_at_once_and_is_nobodys_fault(pumps, client_of):
    client = client_of(write_s=30)
    for pump in pumps:
        pump.behaviour = "too large"
    for ts in range(15):
        with pytest.raises(PumpWriteError, match=f"transaction {ts} .*larger than max"):
            client.prewrite(ts, prewrite(ts))
    assert client.available_pumps() == ["a", "b", "c"]
    assert sum(pump.calls["write"] for pump in pumps) == 15


def test_a_wrong_cluster_id_is_named(pumps, registry):
    for write_s in (0.5, 5, 50):  # so long that the pumps have answered
        with (
            PumpClient(registry, CLUSTER_ID + 1, times=WriteTimes(write_s=write_s)) as client,
            pytest.raises(PumpWriteError) as caught,
        ):
            client.prewrite(1, prewrite(1))
        if "cluster ID are mismatch, 4242 vs 4243" in str(caught.value):
            break
    assert "cluster ID are mismatch, 4242 vs 4243" in str(caught.value)


def test_a_commit_waits_for_its_own_pump_to_come_back(pumps, client_of):
    client = client_of()
    assert client.prewrite(1, prewrite(1)) == "a"
    pumps[0].stop()
    future = client.finish_async(1, commit(1))
    time.sleep(0.5)
    assert not future.done()
    assert pumps[1].kinds(C) == pumps[2].kinds(C) == []
    pumps[0].start()
    assert future.result(timeout=60) == "a"
    assert pumps[0].kinds(C) == [1]


def test_a_commit_finds_its_pump_at_a_new_address(pumps, registry, client_of):
    client = client_of()
    assert client.prewrite(1, prewrite(1)) == "a"
    pumps[0].stop()
    future = client.finish_async(1, commit(1))
    time.sleep(0.2)
    pumps[0].start(port=0)
    registry.register_pump(pumps[0].status)
    assert future.result(timeout=60) == "a"


def test_a_commit_is_given_up_after_its_time_and_says_so(pumps, client_of):
    client = client_of(finish_s=0.5)
    client.prewrite(1, prewrite(1))
    pumps[0].stop()
    with pytest.raises(
        PumpWriteError, match=r"gave up after 0.5 s: Commit or Rollback of transaction 1 to pump a "
    ):
        client.finish(1, commit(1))


def test_a_commit_whose_answer_is_lost_is_sent_again_to_the_same_pump(pumps, client_of):
    client = client_of()
    client.prewrite(1, prewrite(1))
    pumps[0].behaviour = "lose the answer"
    future = client.finish_async(1, commit(1))
    _until(lambda: pumps[0].kinds(C))
    pumps[0].behaviour = "ok"
    assert future.result(timeout=60) == "a"
    assert set(pumps[0].kinds(C)) == {1}
    assert not pumps[1].kinds(C) + pumps[2].kinds(C)


def test_while_all_pumps_are_away_a_prewrite_goes_on_trying(pumps, client_of):
    client = client_of()
    for pump in pumps:
        pump.stop()
    futures = [client.prewrite_async(ts, prewrite(ts)) for ts in range(40)]
    time.sleep(1)
    assert not any(future.done() for future in futures)
    pumps[2].start()
    assert {future.result(timeout=60) for future in futures} == {"c"}
    assert sorted(pumps[2].kinds(P)) == list(range(40))


def test_a_pump_that_registers_later_gets_its_share(pumps, registry, client_of):
    client = client_of()
    late = Pump("d")
    try:
        registry.register_pump(late.status)
        _until(lambda: client.available_pumps() == ["a", "b", "c", "d"])
        assert {client.prewrite(ts, prewrite(ts)) for ts in range(4)} == {"a", "b", "c", "d"}
    finally:
        late.stop()


def test_a_pump_that_is_paused_gets_its_commits_but_no_prewrites(pumps, registry, client_of):
    client = client_of()
    assert client.prewrite(1, prewrite(1)) == "a"
    registry.register_pump(dataclasses.replace(pumps[0].status, state="paused"))
    _until(lambda: client.available_pumps() == ["b", "c"])
    assert client.finish(1, commit(1)) == "a"
    assert client.available_pumps() == ["b", "c"]
    assert {client.prewrite(ts, prewrite(ts)) for ts in range(2, 8)} == {"b", "c"}
    registry.register_pump(pumps[0].status)
    _until(lambda: client.available_pumps() == ["a", "b", "c"])


def test_hundreds_in_flight_and_a_pump_dying_among_them_lose_nothing(pumps, client_of):
    client = client_of()
    done = threading.Semaphore(0)
    futures = {}

    def commit_after(ts, written):
        def run(_):
            futures[ts, "C"] = client.finish_async(ts, commit(ts))
            futures[ts, "C"].add_done_callback(lambda _: done.release())

        written.add_done_callback(run)

    for ts in range(400):
        futures[ts, "P"] = client.prewrite_async(ts, prewrite(ts))
        commit_after(ts, futures[ts, "P"])
        if ts == 200:
            pumps[1].stop()
            threading.Timer(0.5, pumps[1].start).start()
    for _ in range(400):
        assert done.acquire(timeout=60)
    for ts in range(400):
        assert futures[ts, "P"].result() == futures[ts, "C"].result()
        owner = next(pump for pump in pumps if pump.node_id == futures[ts, "P"].result())
        assert ts in owner.kinds(P)
        assert ts in owner.kinds(C)


def test_close_fails_what_is_on_its_way(pumps, client_of):
    client = client_of(write_s=200)
    for pump in pumps:
        pump.behaviour = "hang"
    futures = [client.prewrite_async(ts, prewrite(ts)) for ts in range(3)]
    time.sleep(0.2)
    client.close()
    for future in [*futures, client.prewrite_async(9, prewrite(9))]:
        with pytest.raises(PumpWriteError, match="closed"):
            future.result(timeout=60)


def test_a_second_commit_is_refused(pumps, client_of):
    client = client_of()
    client.prewrite(1, prewrite(1))
    client.finish(1, commit(1))
    with pytest.raises(PumpWriteError, match="no pump has acknowledged"):
        client.finish(1, commit(1))
