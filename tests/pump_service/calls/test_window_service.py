"""What `sluice.Window` answers about a store that isn't whole; without the network."""

import threading

import pytest

from sluice.pump_service.calls.window_service import CallRejected, WindowService
from sluice.pump_service.store import CorruptRecordError, Store
from sluice.tidb import pb
from tests.pump_service.pumpkit import CLUSTER, time_limit
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    commit,
    eventually,
    prewrite,
    settle,
    transactions,
    write,
)


def test_bounds_are_told_where_all_of_a_window_was_given_up(tmp_path):
    store = Store.open(tmp_path, OPTIONS)
    write(store, *transactions(20))
    settle(store)
    place = store._index.get(BASE)
    log = tmp_path / "value" / "000000.vlog"
    data = bytearray(log.read_bytes())
    data[place.offset + 30] ^= 4  # in the payload of the first Prewrite
    log.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        list(store.read_window(0, store.max_commit_ts, strict=True))
    log.with_name(f"{log.name}.lost-{place.offset}").touch()
    service = WindowService(CLUSTER, store, time_limit(), threading.Event())
    first = BASE + 150  # when it was committed
    bounds = service.bounds(
        pb.window.BoundsRequest(
            cluster_id=CLUSTER, lo=first - 1, max_transactions=1, inline_bytes=1 << 20
        )
    )
    assert (bounds.hi, bounds.window) == (first, b"")
    assert not list(store.read_window(first - 1, first, strict=True))
    store.close()


@pytest.mark.parametrize(("own", "wanted"), [("1/2", ""), ("1/2", "2/2"), ("", "1/2")])
def test_a_reader_that_takes_the_pump_for_another_share_is_refused(tmp_path, own, wanted):
    store = Store.open(tmp_path, OPTIONS)
    service = WindowService(CLUSTER, store, time_limit(), threading.Event(), own)
    requests = [
        (service.bounds, pb.window.BoundsRequest),
        (service.bounds_at_once, pb.window.BoundsRequest),
        (service.await_newer, pb.window.AwaitRequest),
        (service.digest, pb.window.DigestRequest),
        (lambda request: next(service.read(request, None)), pb.window.ReadRequest),
    ]
    for call, request in requests:
        with pytest.raises(CallRejected, match="the reader wants"):
            call(request(cluster_id=CLUSTER, share=wanted))
    service.bounds(pb.window.BoundsRequest(cluster_id=CLUSTER, share=own))
    store.close()


def test_a_commit_below_a_readers_start_without_a_mark_is_late_unless_that_is_in_the_future(
    tmp_path,
):
    limit = time_limit()
    store = Store.open(tmp_path, OPTIONS)
    service = WindowService(CLUSTER, store, limit, threading.Event())
    now = limit._clock.fresh()
    for lo, late in ((now + (10**9 << 18), 0), (now, 1)):
        asked = pb.window.BoundsRequest(
            cluster_id=CLUSTER, lo=lo, fresh_ts=lo + 1, ts_is_checked=True
        )
        assert service.bounds_at_once(asked).hi == lo + 1
        start = now - 10 + 2 * late
        write(store, prewrite(start), commit(start, start + 1))
        settle(store, store.max_commit_ts)
        eventually(store.all_matched)
        assert store.stats().late_commits == late
    store.close()


def test_bounds_name_the_commits_that_came_after_a_reader_had_passed_them(tmp_path):
    limit = time_limit()
    store = Store.open(tmp_path, OPTIONS)
    service = WindowService(CLUSTER, store, limit, threading.Event())
    now = limit._clock.fresh()

    def late(lo, answer=service.bounds):
        asked = pb.window.BoundsRequest(cluster_id=CLUSTER, lo=lo, fresh_ts=now, ts_is_checked=True)
        return [(each.commit_ts, each.start_ts) for each in answer(asked).late]

    assert late(now - 1, service.bounds_at_once) == []
    write(store, prewrite(now - 10), commit(now - 10, now))
    eventually(store.all_matched)
    eventually(lambda: store.stats().late_commits == 1)
    limit._clock.fresh()
    assert late(now - 1) == []
    now += 5
    assert late(now - 5, service.bounds_at_once) == late(now - 5) == [(now - 5, now - 15)]
    store.close()
