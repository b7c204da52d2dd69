"""Timestamps that PD can't have given are refused at the door, and nobody is refused because PD or
a clock is away.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from sluice.pump_service.cluster.clock import MAX_AHEAD_MS, FutureTsLimit, PdClock
from sluice.tidb import pb
from tests.pump_service.pumpkit import CLUSTER, Client, Site, binlog

SECOND = 1000 << 18


class FakePD:
    """A PD whose clock a test sets."""

    def __init__(self) -> None:
        self.now = int(time.time() * 1000) << 18
        self.away = False
        self.hangs: threading.Event | None = None

    def __call__(self) -> int:
        if self.hangs is not None:
            self.hangs.wait(60)
        if self.away:
            raise OSError("PD is away")
        self.now += 1
        return self.now


@pytest.fixture
def pd() -> FakePD:
    return FakePD()


@pytest.fixture
def limit(pd: FakePD) -> Iterator[FutureTsLimit]:
    clock = PdClock(pd)
    clock.fresh()
    made = FutureTsLimit(clock)
    made.start()
    yield made
    if pd.hangs:
        pd.hangs.set()
    made.stop()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_is_further_ahead_than_clocks_may_differ_is_refused(
    pd: FakePD, limit: FutureTsLimit
) -> None:
    assert not limit.exceeded(pd.now + MAX_AHEAD_MS // 2 * SECOND // 1000)
    assert not limit.exceeded(pd.now - 86_400 * SECOND)
    for ahead in (60, 600, 86_000, 200 * 365 * 86_400):
        assert limit.exceeded(pd.now + ahead * SECOND)


def test_a_jump_of_pds_clock_refuses_nobody(
    pd: FakePD, limit: FutureTsLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sluice.pump_service.cluster.clock._PD_WAIT_TIMEOUT_S", 60
    )  # on a busy machine the answer may take longer
    for _ in range(20):
        pd.now += 3600 * SECOND
        assert not limit.exceeded(pd.now)


def test_an_answer_from_before_a_jump_refuses_nobody(
    pd: FakePD, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.pump_service.cluster.clock._PD_WAIT_TIMEOUT_S", 60)
    asked, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        if asked.is_set():
            time.sleep(0.05)
            return pd()
        ts = pd()
        asked.set()
        go_on.wait(60)
        return ts

    limit = FutureTsLimit(PdClock(slow))
    limit.start()
    limit._ask.set()
    assert asked.wait(60)
    pd.now += 3600 * SECOND
    threading.Timer(0.05, go_on.set).start()
    assert not limit.exceeded(pd.now)
    limit.stop()


def test_while_pd_is_away_this_machines_clock_may_vouch_for_a_timestamp(
    pd: FakePD, limit: FutureTsLimit
) -> None:
    # a machine that paused for an hour, and PD can't be asked how late it is
    pd.now -= 3600 * SECOND
    late = PdClock(pd)
    late._last = pd.now, time.monotonic()
    pd.away = True
    alone = FutureTsLimit(late)
    alone.start()
    now = int(time.time() * 1000) << 18
    until(lambda: not alone.exceeded(now))
    assert alone.exceeded(now + 60 * SECOND)
    assert not alone.mark_exceeded(now)
    assert alone.mark_exceeded(now + 60 * SECOND)
    pd.away = False
    until(lambda: alone.exceeded(now))  # now PD says what it says
    alone.stop()


def test_a_pd_that_hangs_holds_up_no_writer(pd: FakePD, limit: FutureTsLimit) -> None:
    class Answer(threading.Condition):
        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            return super().wait(timeout)

    limit._answer = answer = Answer()
    pd.hangs = threading.Event()
    for _ in range(200):
        assert limit.exceeded(pd.now + 3600 * SECOND)
    assert answer.waits < 50  # the first, and those until the question is under way


def test_a_readers_mark_is_held_to_what_pd_has_issued(pd: FakePD, limit: FutureTsLimit) -> None:
    assert not limit.mark_exceeded(pd())
    assert limit.mark_exceeded(pd() + 100)
    assert limit.mark_exceeded(pd() + SECOND)


# -- at a pump's port


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    site.pump("clock")
    yield site
    site.close()


@pytest.mark.parametrize("lane", ["alone", "mixed"])
def test_a_binlog_of_the_future_is_refused_and_everything_goes_on(site: Site, lane: str) -> None:
    client = Client(site.pumps[0].address)
    if lane == "mixed":  # a connection that reads too is served by grpcio
        next(client.pull(0))
    far = site.pd.ts() + 3600 * SECOND
    for payload in (
        binlog(0, far),
        binlog(1, site.pd.ts(), far),
        binlog(2, far, far),
        binlog(2, far),
    ):
        with pytest.raises(grpc.RpcError, match="ahead of PD's clock"):
            client.write(payload)
    start, commit = client.transaction(site.pd, b"now")
    assert client.pull_commits(commit - 1, 1)[0].start_ts == start
    assert site.entry(site.pumps[0]).max_commit_ts < far
    client.close()


@pytest.mark.parametrize("ahead_s", [1, 60, 80_000])
def test_a_mark_of_the_future_is_refused_and_hides_no_commit(
    site: Site, ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(site.pumps[0].address)
    bounds = client.channel.unary_unary(
        "/sluice.Window/Bounds",
        pb.window.BoundsRequest.SerializeToString,
        pb.window.BoundsResponse.FromString,
    )
    lo, logical = site.pd.ts(), itertools.count(1)
    future = pb.window.BoundsRequest(
        cluster_id=CLUSTER, lo=lo, fresh_ts=lo + ahead_s * SECOND, wait_ms=500
    )
    monkeypatch.setattr(site.pd, "ts", lambda count=1: lo + next(logical))  # it stays the future
    with pytest.raises(grpc.RpcError) as refused:
        bounds(future, timeout=60)
    monkeypatch.undo()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    _, commit = client.transaction(site.pd, b"seen")
    found = bounds(
        pb.window.BoundsRequest(cluster_id=CLUSTER, lo=lo, fresh_ts=site.pd.ts(), wait_ms=5000),
        timeout=60,
    )
    assert found.max_commit_ts >= commit
    assert found.transactions == 1
    client.close()


@pytest.mark.parametrize(
    "more",
    [
        b"\x18\x85\x80\x80\x80\x80\x80\x80\x80\x41",
        b"\x18\x05",
        b"\x10\x07",
        b"\x08\x00",
        b"\x08\x02",
    ],
    ids=["commit_ts", "short commit_ts", "start_ts", "Prewrite", "Rollback"],
)
def test_a_binlog_that_says_something_twice_is_refused(site: Site, more: bytes) -> None:
    client = Client(site.pumps[0].address)
    start = site.pd.ts()
    client.write(binlog(0, start))
    with pytest.raises(grpc.RpcError, match=r"more than once|not above|ahead"):
        client.write(binlog(1, start, site.pd.ts()) + more)
    commit = site.pd.ts()
    client.write(binlog(1, start, commit))
    assert client.pull_commits(commit - 1, 1)[0].start_ts == start
    client.close()
