"""Pumps that serve only PullBinlogs, as TiDB Binlog's own do, are planned for, read and landed like
Sluice's.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import pytest

from sluice.devstack.launch.pump import PLAIN_VARIABLE
from sluice.devstack.stack import Stack
from sluice.etl.landing import run_land
from sluice.etl.landing.extract import read_range
from sluice.etl.landing.planner import PumpUnavailableError, WindowPlanner
from sluice.etl.settings import Downstream, Relay, Settings, Spark, Upstream
from sluice.etl.settings import Window as Limits
from sluice.relay import RelayLog
from sluice.tidb import EtcdClient, PDClient, PumpClient, PumpReadError, Registry, pb
from sluice.tidb.schema import MAX_USER_TABLE_ID
from tests.etl.filled_pumps import fill
from tests.etl.landing.extract.test_explode import INSERT, explode, mutation, prewrite
from tests.etl.relay_from_recording import RECORDINGS, committed

RECORDING = RECORDINGS / "ddl"
LIMIT = 60


class Site:
    """A stack of etcd, the stand-in cluster and two pumps that have taken a recording, and a
    planner.
    """

    def __init__(self, home):
        self.stack = Stack(home)
        fill(self.stack, RECORDING)
        self.url = f"http://127.0.0.1:{self.stack.site().ports['cluster']}"
        self.pd = PDClient(self.url, timeout_s=60)
        self.etcd = EtcdClient(self.url, timeout_s=60)
        self.registry = Registry(self.etcd)

    def close(self):
        self.etcd.close()
        self.pd.close()
        self.stack.down()

    def planner(self, **limits):
        limits = {"max_transactions": LIMIT, "idle_interval_ms": 100} | limits
        return WindowPlanner(self.pd.cluster_id, Limits(**limits), self.pd.tso, self.registry.pumps)

    def plain(self, monkeypatch, *names):
        """Start again, as pumps with or without the bulk read, those whose kind changes."""
        monkeypatch.setenv(PLAIN_VARIABLE, ",".join(names))
        self.stack.stop(["pump-1", "pump-2"])
        self.stack.up(["pump-1", "pump-2"])

    def kill(self, name):
        os.kill(self.stack.state().parts[name].process.pid, signal.SIGKILL)

    def client(self):
        return PumpClient(self.registry, self.pd.cluster_id)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("originals"))
    yield site
    site.close()


@pytest.fixture(scope="module")
def expected():
    rows = committed(RECORDING)
    table, totals = explode(rows)
    return rows, table, totals


def windows(site, planner, through, lo=0, between=lambda windows: None):
    """Plan and read windows until `through` is done: [(plan, {commit_ts: (start_ts, payload)})].

    Waits for pumps.
    """
    found = []
    deadline = time.monotonic() + 60
    while lo < through:
        assert time.monotonic() < deadline, f"stuck at {lo}, held by {planner.limiting_pump!r}"
        try:
            plan = planner.plan(lo)
            if plan is None:
                time.sleep(0.02)
                continue
            rows = {}
            for part in plan.ranges:
                for batch in read_range(part.host, site.pd.cluster_id, part.lo, part.hi):
                    rows |= {
                        c: (s, p)
                        for c, s, p in zip(*(column.to_pylist() for column in batch.columns))
                    }
        except (PumpUnavailableError, PumpReadError):
            time.sleep(0.1)
            continue
        assert all(plan.lo < commit_ts <= plan.hi for commit_ts in rows)
        found.append((plan, rows))
        lo = plan.hi
        between(found)
    return found


def check(found, expected):
    """Every transaction of the recording once, in the window where it belongs, with the changes and
    DDL of its Prewrite.
    """
    rows, table, totals = expected
    last = rows[-1][0]
    got = sorted(
        (commit, *rest) for _, inside in found for commit, rest in inside.items() if commit <= last
    )
    assert [row[:2] for row in got] == [row[:2] for row in rows]
    changes, told = explode(got)
    assert changes.equals(table) and told.ddls == totals.ddls
    assert all(before.hi == after.lo for (before, _), (after, _) in itertools.pairwise(found))


@pytest.mark.slow
def test_every_transaction_of_original_pumps_comes_once_in_windows_within_the_limits(
    site, expected, monkeypatch
):
    site.plain(monkeypatch, "pump-1", "pump-2")
    planner = site.planner()
    found = windows(site, planner, expected[0][-1][0])
    planner.close()
    check(found, expected)
    assert len(found) > 5 and all(len(inside) <= 2 * LIMIT for _, inside in found)


@pytest.mark.slow
def test_one_pump_of_each_kind_and_one_that_is_replaced_on_the_way(site, expected, monkeypatch):
    site.plain(monkeypatch, "pump-2")
    planner = site.planner()

    def swap(found):
        if len(found) == 3:
            site.plain(monkeypatch, "pump-1")

    found = windows(site, planner, expected[0][-1][0], between=swap)
    planner.close()
    check(found, expected)
    assert len(found) > 5


@pytest.mark.slow
def test_a_pump_killed_under_its_readers_is_waited_for_and_loses_nothing(
    site, expected, monkeypatch
):
    site.plain(monkeypatch, "pump-1", "pump-2")
    planner = site.planner()
    found = windows(site, planner, expected[0][len(expected[0]) // 3][0])
    site.kill("pump-2")
    with pytest.raises(
        PumpUnavailableError,
        match=r"pump pump-2 at 127.0.0.1:\d+, state online.*every window waits",
    ):
        lo = found[-1][0].hi
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # what the stream had sent before can still be planned
            plan = planner.plan(lo)
            lo = plan.hi if plan is not None else lo
            time.sleep(0.01)
    timer = threading.Timer(0.5, site.stack.up, [["pump-2"]])
    timer.start()
    found += windows(site, planner, expected[0][-1][0], lo=found[-1][0].hi)
    timer.join()
    planner.close()
    check(found, expected)


@pytest.mark.slow
def test_planning_again_from_an_earlier_place_gives_the_same_transactions(
    site, expected, monkeypatch
):
    site.plain(monkeypatch, "pump-1", "pump-2")
    planner = site.planner()
    found = windows(site, planner, expected[0][-1][0])
    again = windows(site, planner, expected[0][-1][0], lo=found[2][0].hi)
    planner.close()
    check(found[:3] + again, expected)


@pytest.mark.slow
def test_a_prewrite_without_its_commit_holds_the_window_back_until_the_verdict(site, monkeypatch):
    site.plain(monkeypatch, "pump-1", "pump-2")
    planner = site.planner(idle_interval_ms=1)
    client = site.client()
    lo = site.pd.tso()
    start, open_start = site.pd.tso(), site.pd.tso()
    client.prewrite(
        open_start,
        prewrite(open_start, mutation(MAX_USER_TABLE_ID + 1, (INSERT, b"held")), prewrite_key=b"a"),
    )
    client.prewrite(
        start, prewrite(start, mutation(MAX_USER_TABLE_ID + 1, (INSERT, b"row")), prewrite_key=b"b")
    )
    commit = site.pd.tso()
    done = pb.binlog.Binlog(
        tp=1, start_ts=start, commit_ts=commit, ddl_job_id=0, ddl_schema_state=0
    )
    client.finish(start, done.SerializeToString())
    open_commit = site.pd.tso()
    until = time.monotonic() + 4  # longer than between fake binlogs
    at = lo
    while time.monotonic() < until:
        plan = planner.plan(lo)
        at = max(at, plan.hi if plan else 0)
        time.sleep(0.05)
    assert at < open_commit
    done = pb.binlog.Binlog(
        tp=1, start_ts=open_start, commit_ts=open_commit, ddl_job_id=0, ddl_schema_state=0
    )
    client.finish(open_start, done.SerializeToString())
    client.close()
    found = windows(site, planner, open_commit, lo=lo)
    planner.close()
    assert [(c, s) for _, rows in found for c, (s, _) in sorted(rows.items())] == [
        (commit, start),
        (open_commit, open_start),
    ]


@pytest.mark.slow
def test_a_whole_recording_lands_from_original_pumps(
    site, expected, monkeypatch, spark_remote, tmp_path
):
    site.plain(monkeypatch, "pump-1", "pump-2")
    rows, table, totals = expected
    settings = Settings(
        upstream=Upstream(site.url, initial_commit_ts=0),
        relay=Relay((tmp_path / "relay").as_uri()),
        downstream=Downstream("127.0.0.1", port=1),
        spark=Spark(spark_remote),
        window=Limits(max_transactions=LIMIT, idle_interval_ms=100),
    )
    run_land(settings, start_ts=0, until_ts=rows[-1][0], run_seconds=120)
    relay = RelayLog.open(settings.relay.url)
    landed = list(relay.windows(0))
    assert (
        all(before.hi == after.lo for before, after in itertools.pairwise(landed))
        and len(landed) > 5
    )
    inside = relay.read(landed).to_pylist()
    assert [change for change in inside if change["commit_ts"] <= rows[-1][0]] == table.to_pylist()
    assert [ddl["commit_ts"] for window in landed for ddl in window.ddls] == [
        ddl.commit_ts for ddl in totals.ddls
    ]
