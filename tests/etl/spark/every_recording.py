"""All recordings through a standalone cluster: landed from two pumps while a worker is killed,
applied while the master is restarted, and compared with what TiDB had.

    make test-cluster

Not among the tests that run every time (`test_standalone_cluster` is): it takes some minutes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sluice.devstack.compare import ComparisonReport, compare
from sluice.devstack.control import ClusterControl
from sluice.devstack.recording import Recording
from sluice.devstack.stack import Stack
from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.changes.rules import Filter, NameRule
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.landing import LandedWindow, run_land
from sluice.etl.settings import Apply, Settings, Upstream
from sluice.etl.settings import Window as Limits
from tests.devstack.cluster_harness import wait_for
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.spark.standalone import ROOT, ClusterApart, settings_of
from tests.object_store.s3_server import S3Server

SYSBENCH = ROOT / "bench" / "recordings" / "sysbench"
FOLDERS = [*sorted(RECORDINGS.iterdir()), SYSBENCH]
WINDOWS = 12
BATCHES = 6
"""About so many of each recording."""
REFUSED = re.compile(r"conv\.(c_\w+)\.v from .* to .*: the value .*sluice ddl skip", re.DOTALL)
"""A conversion that no other server can do exactly stops applying; it is left out then, as an
operator would.
"""
NOT_RECORDED = {"oldcoll": "oldc.p: "}
"""The store that was recorded read NULL where this table's clustered key is."""

pytestmark = pytest.mark.timeout(7200)


@contextlib.contextmanager
def pumps_with(recording: Recording, home: Path) -> Iterator[Upstream]:
    """Two pumps that hold all of it through its last snapshot."""
    stack = Stack(home)
    try:
        stack.up(["etcd", "cluster", "pump-1", "pump-2"], recording=recording.directory)
        ports = stack.site().ports
        control = ClusterControl(ports["cluster-control"])
        control.replay(recording.labels[-1].name, "max", "range")
        wait_for(lambda: control.status()["state"] == "done", 600, "the recording is in the pumps")
        yield Upstream(f"http://127.0.0.1:{ports['cluster']}", initial_commit_ts=0)
    finally:
        stack.down()


@dataclass(slots=True)
class Disturbed:
    """Does it after the first call, once. `changes`: row changes of what it was called with."""

    act: Callable[[], None]
    calls: int = 0
    changes: int = 0

    def __call__(self, done: LandedWindow | BatchReport) -> None:
        self.calls += 1
        self.changes += done.changes
        if self.calls == 1:
            self.act()


def kill_and_start_a_worker(cluster: ClusterApart) -> None:
    cluster.kill("worker-0")
    cluster.start_worker(0)


def restart_the_master(cluster: ClusterApart) -> None:
    cluster.kill("master")
    cluster.start_master()


def apply_what_can_be(
    settings: Settings, until_ts: int, on_batch: Callable[[BatchReport], None]
) -> set[str]:
    """The tables of `conversions` that it stopped at."""
    refused: set[str] = set()
    while True:
        ignored = tuple(NameRule("conv", name, name) for name in sorted(refused))
        now = replace(settings, filters=Filter(ignored_tables=ignored))
        try:
            run_apply(now, until_ts=until_ts, on_batch=on_batch)
            return refused
        except DdlError as error:
            named = REFUSED.search(str(error))
            if named is None or named[1] in refused:
                raise
            refused.add(named[1])


def compared(recording: Recording, mariadb: MariaDBServer) -> ComparisonReport:
    last = recording.labels[-1]
    with contextlib.closing(mariadb.connect()) as connection:
        return compare(recording.directory / "snapshots" / last.name, connection)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_recording_arrives_whole_though_a_worker_dies_and_the_master_restarts(
    folder: Path,
    standalone_cluster: ClusterApart,
    standalone_store: S3Server,
    mariadb: MariaDBServer,
    tmp_path: Path,
) -> None:
    recording = Recording(folder)
    last = recording.labels[-1]
    commits = len(recording.transactions(last.ts))
    settings = settings_of(
        standalone_cluster, standalone_store.url(f"every-{folder.name}"), mariadb
    )
    landed = Disturbed(lambda: kill_and_start_a_worker(standalone_cluster))
    with pumps_with(recording, tmp_path / "up") as upstream:
        limits = Limits(max_transactions=max(10, commits // WINDOWS), idle_interval_ms=100)
        settings = replace(settings, upstream=upstream, window=limits)
        run_land(settings, until_ts=last.ts, on_window=landed)
        applied = Disturbed(lambda: restart_the_master(standalone_cluster))
        settings = replace(settings, apply=Apply(max_rows=max(10, landed.changes // BATCHES)))
        refused = apply_what_can_be(settings, last.ts, applied)
    report = compared(recording, mariadb)
    print(
        f"{folder.name}: {commits} transactions in {landed.calls} windows and {applied.calls}"
        f" batches; {report.tables} tables, {report.rows} rows; left out:"
        f" {', '.join(sorted(refused)) or 'none'}"
    )
    excused = (NOT_RECORDED.get(folder.name, "\n"), *(f"conv.{name}:" for name in refused))
    assert [line for line in report.differences if not line.startswith(excused)] == []
    assert landed.calls > 2 and applied.calls > 1
    standalone_cluster.wait_for_executors(2)
