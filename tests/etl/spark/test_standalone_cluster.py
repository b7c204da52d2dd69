"""A cluster whose workers share nothing with the driver but an object store: the recordings arrive
without a difference, whatever dies in between.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.devstack.stack import Stack
from sluice.etl.apply import BatchReport, run_apply
from sluice.etl.landing import run_land
from sluice.etl.settings import Apply, SettingsError, Spark, Upstream
from sluice.etl.settings import Window as Limits
from sluice.etl.spark import session as spark_session
from sluice.etl.spark.job import TaskFrame, stream
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.spark.worker_tuning import TEXTS
from sluice.relay import RelayLog
from tests.devstack.cluster_harness import wait_for
from tests.etl.filled_pumps import fill
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences
from tests.etl.spark.standalone import ClusterApart, settings_of
from tests.object_store.s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A cluster and a stack start here; a busy machine takes minutes for each."""


def where_workers_are(cluster: ClusterApart, marker: Path) -> set[tuple[str, str, bool]]:
    """Of both workers: the folder in which its Python runs, where it has Sluice from, whether it
    sees a file.
    """

    def look(batches):
        import os
        import time

        import sluice.errors

        for _ in batches:
            time.sleep(0.5)  # so that each of the two has one
            said = json.dumps([os.getcwd(), sluice.errors.__file__, os.path.exists(marker)])
            yield pa.record_batch([pa.array([said])], schema=TEXTS)

    marker = str(marker)
    spark = spark_session.attach(Spark(cluster.remote), "where")
    frame = TaskFrame(spark, look, TEXTS, TEXTS).of(pa.table({"text": ["", ""]}))
    found: set[tuple[str, str, bool]] = set()

    def ask() -> bool:
        nonlocal found
        found = {
            tuple(json.loads(text))
            for text in pa.Table.from_batches(stream(spark, frame, 240))["text"].to_pylist()
        }
        return len({folder for folder, _, _ in found}) == 2

    try:
        wait_for(ask, 240, "each executor has a task")  # one that is starting has none yet
        return found
    finally:
        spark_session.close(spark)


@pytest.mark.slow
def test_workers_have_sluice_from_the_session_and_nothing_of_the_driver(
    standalone_cluster: ClusterApart, tmp_path: Path
) -> None:
    marker = tmp_path / "the driver's"
    marker.touch()
    found = where_workers_are(standalone_cluster, marker)
    assert all("/sluice-" in sluice and ".zip/" in sluice for _, sluice, _ in found)
    assert {seen for _, _, seen in found} == {not standalone_cluster.is_apart}


def test_a_relay_log_in_a_folder_is_refused_unless_it_is_shared(
    standalone_cluster: ClusterApart, tmp_path: Path
) -> None:
    server = Spark(standalone_cluster.remote)
    place = SessionTarget(server, "land", tmp_path.as_uri())
    with pytest.raises(
        SettingsError,
        match=r"workers run elsewhere \(the master of sc://.* is spark://.*shared-files",
    ):
        spark_session.connect(place)
    spark_session.close(
        spark_session.connect(place._replace(server=replace(server, shared_files=True)))
    )


@pytest.mark.slow
def test_what_pumps_hold_is_landed_in_the_store_and_applied(
    standalone_cluster: ClusterApart,
    standalone_store: S3Server,
    mariadb: MariaDBServer,
    tmp_path: Path,
) -> None:
    settings = settings_of(standalone_cluster, standalone_store.url("landed"), mariadb)
    stack = Stack(tmp_path / "up")
    try:
        fill(stack, RECORDINGS / "ddl")
        url = f"http://127.0.0.1:{stack.site().ports['cluster']}"
        settings = replace(
            settings,
            upstream=Upstream(url, initial_commit_ts=0),
            window=Limits(max_transactions=80, idle_interval_ms=100),
        )
        end = max(
            snapshot["ts"]
            for snapshot in json.loads((RECORDINGS / "ddl" / "snapshots.json").read_text())
        )
        landed = threading.Event()
        run_land(
            settings,
            stop=landed,
            on_window=lambda window: landed.set() if window.hi >= end else None,
        )
    finally:
        stack.down()
    last = RelayLog.open(settings.relay.url).last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=240)
    assert differences(RECORDINGS / "ddl", "f_end", mariadb) == []


@pytest.mark.slow
def test_a_worker_that_is_killed_while_changes_are_applied_costs_nothing(
    standalone_cluster: ClusterApart, standalone_store: S3Server, mariadb: MariaDBServer
) -> None:
    url = standalone_store.url("killed")
    relay = land(RECORDINGS / "shop", url, transactions=1500)
    last = relay.last()
    assert last is not None
    settings = replace(settings_of(standalone_cluster, url, mariadb), apply=Apply(max_rows=10_000))
    killed = []

    def kill_once(batch: BatchReport) -> None:
        if not killed:
            killed.append(batch)
            standalone_cluster.kill("worker-0")

    summary = run_apply(settings, until_ts=last.hi, stop=threading.Event(), on_batch=kill_once)
    assert summary.checkpoint == last.hi
    assert summary.batches > 2
    assert differences(RECORDINGS / "shop", "e_end", mariadb) == []
    standalone_cluster.start_worker(0)
    standalone_cluster.wait_for_executors(2)


@pytest.fixture(scope="module")
def master_away(standalone_cluster: ClusterApart) -> None:
    """The master is killed, and not there until `master_back`."""
    standalone_cluster.kill("master")


@pytest.fixture(scope="module")
def master_back(master_away: None, standalone_cluster: ClusterApart) -> None:
    """The master was killed and restarted, and knows of both executors."""
    standalone_cluster.start_master()
    standalone_cluster.wait_for_executors(2)


@pytest.mark.beyond_ci
@pytest.mark.slow
@pytest.mark.usefixtures("master_away")
def test_sessions_go_on_while_the_master_is_away(
    standalone_cluster: ClusterApart, standalone_store: S3Server, mariadb: MariaDBServer
) -> None:
    settings = settings_of(standalone_cluster, standalone_store.url("types"), mariadb)
    last = land(RECORDINGS / "types", settings.relay.url, 7).last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=240)
    assert differences(RECORDINGS / "types", "end", mariadb) == []
    assert "master" not in standalone_cluster.pids


@pytest.mark.beyond_ci
@pytest.mark.slow
@pytest.mark.usefixtures("master_back")
def test_a_master_that_was_restarted_gives_running_sessions_new_executors(
    standalone_cluster: ClusterApart, tmp_path: Path
) -> None:
    standalone_cluster.kill("worker-1")
    standalone_cluster.wait_for_executors(1)
    standalone_cluster.start_worker(1)
    standalone_cluster.wait_for_executors(2)
    folders = {folder for folder, _, _ in where_workers_are(standalone_cluster, tmp_path)}
    # What works in the killed worker's folder was started by the restarted master.
    assert {Path(folder).relative_to(standalone_cluster.home).parts[0] for folder in folders} == {
        "worker-0",
        "worker-1",
    }
