"""The PD client against gRPC servers that check what a PD checks."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluice.tidb import tso
from sluice.tidb.pd import PDClient, PDError, Peer
from tests.tidb.wire_cluster import CLUSTER_ID, Cluster, Range


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def pd(cluster):
    with PDClient(cluster.urls, timeout_s=60) as client:
        yield client


def test_the_cluster_id_comes_from_any_member(cluster):
    cluster.leader = 1
    with PDClient(cluster.urls[0]) as client:
        assert client.cluster_id == CLUSTER_ID
        assert set(client.urls) == set(cluster.urls)
        # from the leader, which was not among the addresses given
        assert client.get_gc_safe_point() == 42


def test_timestamps_of_many_threads_are_unique_ascending_in_each_and_share_requests(cluster, pd):
    def take(_):
        return [pd.tso() for _ in range(100)]

    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(take, range(8)))
    assert all(run == sorted(run) for run in runs)
    taken = sorted(ts for run in runs for ts in run)
    assert len(set(taken)) == 800
    assert taken == [tso.compose(cluster.physical, logical) for logical in range(1, 801)]
    assert sum(cluster.tso_requests) == 800
    assert len(cluster.tso_requests) < 800


def test_a_clock_that_goes_back_is_an_error_and_not_a_timestamp(cluster, pd):
    first = pd.tso()
    cluster.physical -= 1
    with pytest.raises(PDError, match=f"back in time.*{first}"):
        pd.tso()
    cluster.physical += 2
    assert pd.tso() > first


def test_calls_follow_the_leader(cluster, pd):
    before = pd.tso()
    assert pd.get_region(b"k").id == 2
    cluster.leader = 1
    assert pd.tso() > before
    assert pd.get_region(b"k").id == 2
    assert cluster.calls["pd1"] == 1


def test_calls_survive_the_death_of_the_leader(cluster, pd):
    before = pd.tso()
    cluster.members[0].stop()
    cluster.leader = 1
    assert pd.tso() > before
    assert pd.get_store(1).address == cluster.stores[1].address


def test_calls_wait_for_an_election(cluster, pd):
    cluster.leader = -1
    threading.Timer(0.5, lambda: setattr(cluster, "leader", 1)).start()
    assert pd.tso() > 0


def test_a_silent_timestamp_stream_is_replaced(cluster):
    with PDClient(cluster.urls, timeout_s=5) as pd:
        pd.tso()
        cluster.tso_hangs = 1
        assert pd.tso() > 0


def test_a_pd_that_stays_silent_is_an_error_in_time(cluster):
    with PDClient(cluster.urls, timeout_s=2) as client:
        client.tso()
        cluster.tso_hangs = 100
        begin = time.monotonic()
        with pytest.raises(PDError, match="within 2 s"):
            client.tso()
        assert time.monotonic() - begin < 30
        cluster.tso_hangs = 0
        assert client.tso() > 0


def test_an_address_where_nobody_listens_is_an_error_that_names_it():
    with PDClient("http://127.0.0.1:1", timeout_s=0.5) as client:
        for call in [client.tso, client.get_gc_safe_point, lambda: client.cluster_id]:
            with pytest.raises(PDError, match=r"127\.0\.0\.1:1"):
                call()


def test_a_region_has_raw_keys_its_leader_and_its_peers(cluster, pd):
    cluster.regions[:] = [
        Range(2, b"", b"m\x00\xff", 1),
        Range(3, b"m\x00\xff", b"", 2, conf_ver=5, version=7),
    ]
    assert pd.get_region(b"a").end_key == b"m\x00\xff"
    region = pd.get_region(b"m\x00\xff")
    assert (region.id, region.start_key, region.end_key) == (3, b"m\x00\xff", b"")
    assert (region.conf_ver, region.version) == (5, 7)
    assert region.peers == (Peer(301, 1), Peer(302, 2))
    assert region.leader == Peer(302, 2)


def test_a_region_that_pd_does_not_know_yet_is_waited_for(cluster, pd):
    cluster.unknown_regions = 2
    assert pd.get_region(b"k").id == 2
    cluster.unknown_regions = 10_000
    with (
        PDClient(cluster.urls, timeout_s=2) as hasty,
        pytest.raises(PDError, match=r"GetRegion within 2 s.*empty"),
    ):
        hasty.get_region(b"k")


def test_a_store_and_safe_points(cluster, pd):
    assert pd.get_store(1).address == cluster.stores[1].address
    with pytest.raises(PDError, match="invalid store ID 9"):
        pd.get_store(9)
    assert pd.get_gc_safe_point() == 42
    assert pd.update_service_gc_safe_point("sluice", 60, 77) == 77


def test_a_closed_client_says_so(cluster):
    client = PDClient(cluster.urls)
    client.tso()
    client.close()
    for call in [client.tso, client.get_gc_safe_point]:
        with pytest.raises(PDError, match="closed"):
            call()


def test_no_address_is_refused():
    with pytest.raises(ValueError, match="no PD address"):
        PDClient(" , ")
