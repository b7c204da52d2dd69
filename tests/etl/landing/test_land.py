"""Landing from real pumps through real Spark: every transaction once, in order, whatever dies in
between.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pyarrow.compute as pc
import pytest

from sluice.devstack.stack import Stack
from sluice.etl.downstream.ownership import PipelineIdentity
from sluice.etl.landing import NoCheckpointError, run_land
from sluice.etl.landing import _control as _orders
from sluice.etl.landing.extract import BinlogDecodeError
from sluice.etl.landing.land import UnknownTableError, WrongClusterError
from sluice.etl.settings import Downstream, Relay, Settings, Spark, Upstream
from sluice.etl.settings import Window as Limits
from sluice.pump_service.cluster.notify import notify_drainers
from sluice.relay import (
    SKIP,
    AlignedChunk,
    ClaimLostError,
    Control,
    Override,
    Ownership,
    RelayLog,
    WindowRecord,
)
from sluice.relay.measures import CounterStore
from sluice.relay.verification_log import Verifications
from sluice.tidb import EtcdClient, NodeStatus, PDClient, PumpClient, Registry, pb, tso
from tests.etl.filled_pumps import fill
from tests.etl.landing.extract.test_explode import INSERT, explode, mutation, prewrite
from tests.etl.landing.landing_by_steps import Ground, Point, run_point
from tests.etl.relay_from_recording import RECORDINGS, committed
from tests.etl.stopped_work import Workshop

RECORDING = RECORDINGS / "ddl"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    """etcd, the stand-in cluster and two pumps that have taken the whole recording."""
    stack = Stack(tmp_path_factory.mktemp("up"))
    try:
        fill(stack, RECORDING)
        yield stack
    finally:
        stack.down()


@pytest.fixture(scope="module")
def expected():
    """Changes and DDL of the recording."""
    rows = committed(RECORDING)
    table, totals = explode(rows)
    return rows, table, totals


@pytest.fixture
def settings(upstream, spark_remote, tmp_path):
    return Settings(
        upstream=Upstream(
            f"http://127.0.0.1:{upstream.site().ports['cluster']}", initial_commit_ts=0
        ),
        relay=Relay((tmp_path / "relay").as_uri()),
        downstream=Downstream("127.0.0.1", port=1),
        spark=Spark(spark_remote),
        window=Limits(max_transactions=80, idle_interval_ms=100),
    )


def check(settings, expected):
    """The relay log holds exactly the recording, in a whole chain, and knows the table of every
    row.
    """
    rows, table, _ = expected
    relay = RelayLog.open(settings.relay.url)
    windows = list(relay.windows(0))
    assert windows[0].lo == 0
    assert all(before.hi == after.lo for before, after in itertools.pairwise(windows))
    assert relay.read(windows).to_pylist() == table.to_pylist()
    assert sum(window.transactions for window in windows) == len(rows)
    for window in windows:
        inside = relay.read([window])
        assert window.changes == inside.num_rows
        known = {int(table_id) for table_id in window.tables} | set(window.truncated_tables)
        known |= {
            int(i) for ddl in window.ddls for i, made in ddl["effect"]["tables"].items() if made
        }
        assert set(inside["table_id"].to_pylist()) <= known
    return relay, windows


def until(expected):
    return expected[0][-1][0]


def test_a_whole_recording_lands_in_windows_with_the_schemas_and_ddl_it_needs(settings, expected):
    seen = []
    summary = run_land(
        settings, start_ts=0, until_ts=until(expected), run_seconds=120, on_window=seen.append
    )
    _, windows = check(settings, expected)
    assert summary.transactions == len(expected[0]) and summary.changes == expected[1].num_rows
    assert summary.windows == len(windows) == len(seen) > 8
    assert {"plan", "job", "resolve", "commit", "read", "explode", "write"} <= set(
        summary.stages_ms
    )
    landed = [
        (ddl["commit_ts"], ddl["job_id"], ddl["query"]) for window in windows for ddl in window.ddls
    ]
    assert landed == [(ddl.commit_ts, ddl.job_id, ddl.query) for ddl in expected[2].ddls]
    created = next(
        ddl
        for window in windows
        for ddl in window.ddls
        if ddl["type"] == 3 and ddl["schema_name"] == "shop"
    )
    (table,) = created["effect"]["tables"].values()
    assert table["name"] == created["table_name"] and table["columns"]
    begun = [
        ddl
        for window in windows
        for ddl in window.ddls
        if ddl["type"] == 6 and ddl["schema_state"] == 1
    ]
    assert begun and all(ddl["effect"] == {"schemas": {}, "tables": {}} for ddl in begun)


@pytest.mark.slow
def test_tables_that_br_restores_are_named_and_counted_once_they_are_landed(
    settings, expected, monkeypatch, caplog
):
    monkeypatch.setattr(
        "sluice.etl.landing._without_binlog._BR_COMMENT", ""
    )  # as if BR had made every table of the recording
    middle = expected[0][len(expected[0]) // 3][0]
    run_land(settings, start_ts=0, until_ts=middle, run_seconds=120)
    relay = RelayLog.open(settings.relay.url)
    ddls = [ddl for window in relay.windows(0) for ddl in window.ddls]
    ddls = [ddl for ddl in ddls if ddl["type"] == 3 and ddl["schema_name"] == "shop"]
    # a temporary table: it has no rows
    made = [ddl["job_id"] for ddl in ddls if ddl["table_name"] != "gt"]
    named = [
        record.getMessage() for record in caplog.records if "BR restores" in record.getMessage()
    ]
    assert [int(line.split()[2]) for line in named] == made and made
    assert CounterStore(relay).totals().land.counts["without_binlog"] == len(made)
    doubted = Verifications(relay).last()
    assert set(doubted) == {f"shop.{ddl['table_name']}" for ddl in ddls} - {"shop.gt"}
    assert not any(table.equal for table in doubted.values())


@pytest.mark.slow
def test_a_run_goes_on_where_the_one_before_ended(settings, expected):
    middle = expected[0][len(expected[0]) // 2][0]
    first = run_land(settings, start_ts=0, until_ts=middle, run_seconds=120)
    # the settings' downstream is not there
    second = run_land(settings, until_ts=until(expected), run_seconds=120)
    assert middle <= first.hi < second.hi
    check(settings, expected)


@pytest.mark.timeout(150)
@pytest.mark.slow
def test_of_two_pipelines_on_one_relay_log_one_lands_and_the_other_once_that_one_is_paused(
    settings, expected, monkeypatch
):
    monkeypatch.setattr(_orders, "CHECK_INTERVAL_S", 0.0)
    large = Limits(max_transactions=200, idle_interval_ms=100)
    one, other = (
        dataclasses.replace(
            settings, relay=dataclasses.replace(settings.relay, pipeline=name), window=large
        )
        for name in ("a", "b")
    )
    relay = one.open_relay()
    other.open_relay().own(Ownership("b", "elsewhere"))  # it has begun to read
    seen, ended, over = [], [], threading.Event()

    def noted(window):
        seen.append(window)
        if len(seen) == 1:
            relay.change_control(lambda control: dataclasses.replace(control, land_paused=True))

    def land_one():
        ended.append(run_land(one, start_ts=0, run_seconds=300, stop=over.is_set, on_window=noted))

    thread = threading.Thread(target=land_one)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while relay.claimant("land") != "a":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = run_land(other, until_ts=until(expected), run_seconds=240)
        assert relay.claimant("land") == "b"
    finally:
        over.set()
        thread.join(60)
    _, (first, *others) = check(settings, expected)
    assert ended[0].windows == len(seen) == 1 and second.windows == len(others) > 0
    assert first.token not in {window.token for window in others}


@pytest.mark.slow
def test_a_lander_killed_at_any_moment_loses_and_repeats_nothing(settings, expected, tmp_path):
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "{settings.upstream.pd_urls}"\n[relay]\nurl ='
        f' "{settings.relay.url}"\n[downstream]\nhost = "x"\n[spark]\nremote ='
        f' "{settings.spark.remote}"\n[window]\nmax-transactions = 60\n'
    )
    program = (
        "from sluice.etl import load_settings, run_land\n"
        "run_land(load_settings(), start_ts=0, on_window=lambda w: print(w.hi, flush=True))"
    )
    landed = []
    for windows in (1, 3):
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"SLUICE_CONFIG": str(config)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            landed += [int(child.stdout.readline()) for _ in range(windows)]
            time.sleep(0.03 * windows)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    summary = run_land(settings, start_ts=0, until_ts=until(expected), run_seconds=120)
    assert summary.windows
    relay, windows = check(settings, expected)
    assert set(landed) <= {window.hi for window in windows}
    relay.clean_unreferenced()
    parts = [
        path
        for hour in relay.storage.names("parts")
        for path in relay.storage.sizes(f"parts/{hour}")
    ]
    assert len(parts) == sum(len(window.parts) for window in windows)


POINTS = [
    Point("receive 5", "", "taken over"),  # its worker has been asked
    Point("create windows/ 2", "", "taken over"),  # the parts are durable, and named nowhere yet
    Point("", "send 5", "worker killed"),
]


@pytest.mark.slow
def test_wherever_a_lander_stands_still_or_its_standing_worker_dies_all_is_landed_once(
    settings, expected, spark_server, tmp_path
):
    """Some of the points of `bench/worker_reuse.py`, which goes through all of them."""
    until_ts = expected[0][len(expected[0]) // 2][0]
    rows = expected[1].filter(pc.less_equal(expected[1]["commit_ts"], until_ts))
    with Workshop("tests.etl.landing.landing_by_steps") as shop:
        ground = Ground(shop, spark_server, settings, rows, until_ts)
        for number, point in enumerate(POINTS):
            # at one URL, as its session and workers are warm
            shutil.rmtree(tmp_path / "relay", ignore_errors=True)
            assert (point, run_point(ground, tmp_path / str(number), point)) == (point, "")


@pytest.mark.slow
def test_a_pump_that_is_away_is_waited_for_and_named(settings, expected, upstream, caplog):
    caplog.set_level(logging.WARNING, "sluice.land")
    os.kill(upstream.state().parts["pump-2"].process.pid, signal.SIGKILL)
    stop = threading.Event()
    result = []
    thread = threading.Thread(
        target=lambda: result.append(
            run_land(settings, start_ts=0, until_ts=until(expected), stop=stop, run_seconds=150)
        )
    )
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while "pump pump-2 at" not in caplog.text:
            assert time.monotonic() < deadline and thread.is_alive()
            time.sleep(0.05)
        assert RelayLog.open(settings.relay.url).last() is None
        upstream.up(["pump-2"])
        thread.join(120)
    finally:
        stop.set()
        thread.join(60)
    assert result and result[0].retries > 0
    check(settings, expected)


@pytest.mark.slow
def test_a_spark_server_killed_in_the_middle_is_waited_for(settings, expected, spark_server):
    killed = []

    def kill_once(window):
        if not killed:
            killed.append(window)
            spark_server.kill()
            threading.Thread(target=spark_server.start).start()

    summary = run_land(
        settings, start_ts=0, until_ts=until(expected), run_seconds=200, on_window=kill_once
    )
    assert killed and summary.retries > 0
    check(settings, expected)


@pytest.mark.slow
def test_a_paused_log_gets_no_windows_until_it_is_resumed(settings):
    relay = RelayLog.open(settings.relay.url)
    relay.change_control(lambda _: Control(land_paused=True))
    assert run_land(settings, start_ts=0, run_seconds=1).windows == 0
    relay.change_control(lambda _: Control(land_paused=False))
    assert (
        run_land(
            settings, start_ts=0, run_seconds=240, stop=lambda: relay.last() is not None
        ).windows
        == 1
    )


@pytest.mark.slow
def test_the_newest_lander_takes_over_and_the_older_one_ends(settings, expected):
    taken = []

    def take_over(window):
        if not taken:
            taken.append(run_land(settings, until_ts=until(expected)))

    with pytest.raises(ClaimLostError, match="land was taken over by process"):
        run_land(settings, start_ts=0, on_window=take_over)
    assert taken[0].windows > 3
    check(settings, expected)


@pytest.mark.slow
def test_who_is_about_to_begin_when_another_begins_elsewhere_begins_no_second_chain(
    settings, expected, monkeypatch
):
    middle, begin = expected[0][len(expected[0]) // 2][0], RelayLog.begin

    def late(relay, window):
        monkeypatch.undo()
        run_land(settings, start_ts=middle, until_ts=until(expected))
        begin(relay, window)

    monkeypatch.setattr(RelayLog, "begin", late)
    with pytest.raises(ClaimLostError, match="land was taken over by process"):
        run_land(settings, start_ts=0)
    windows = list(RelayLog.open(settings.relay.url).windows(0))
    assert windows[0].lo == middle and windows[-1].hi >= until(expected)


@pytest.mark.slow
def test_who_is_killed_before_the_first_window_has_its_own_name_has_begun_all_the_same(
    settings, expected
):
    relay = RelayLog.open(settings.relay.url)
    run_land(settings, start_ts=0, run_seconds=240, stop=lambda: relay.last() is not None)
    first = relay.first()
    relay.storage.remove(first.path)
    run_land(settings, start_ts=first.hi - 1, until_ts=until(expected), run_seconds=120)
    _, windows = check(settings, expected)
    assert windows[0] == first


@pytest.mark.slow
def test_starting_now_is_made_durable_at_once(settings):
    now = dataclasses.replace(
        settings, upstream=dataclasses.replace(settings.upstream, initial_commit_ts=-1)
    )
    with PDClient(settings.upstream.pd_urls, timeout_s=60) as pd:
        before = pd.tso()
        summary = run_land(
            now,
            start_ts=pd.tso(),
            run_seconds=240,
            stop=lambda: RelayLog.open(settings.relay.url).last() is not None,
        )
    window = RelayLog.open(settings.relay.url).last()
    assert summary.windows == 1 and window.lo > before and window.transactions == 0
    assert window.schema_version > 50


def test_an_idle_upstream_lands_a_window_for_an_appointment_without_waiting_for_its_interval(
    settings,
):
    settings = dataclasses.replace(settings, window=Limits(idle_interval_ms=3_600_000))
    with PDClient(settings.upstream.pd_urls) as pd:
        begin = pd.tso()
    relay, at_ts = RelayLog.open(settings.relay.url), begin + tso.span(3_000)
    relay.aligned_chunks.make(AlignedChunk(at_ts, "job", 1, 1, "d", "t"))
    summary = run_land(settings, start_ts=begin, until_ts=at_ts, run_seconds=120)
    assert summary.hi >= at_ts
    assert summary.windows <= 3


def test_without_a_relay_log_an_unreachable_downstream_is_waited_for(settings, caplog):
    caplog.set_level(logging.WARNING, "sluice.land")
    # The checkpoint may be there: beginning elsewhere could skip commits.
    assert (
        run_land(settings, run_seconds=240, stop=lambda: "127.0.0.1:1" in caplog.text).windows == 0
    )
    assert "127.0.0.1:1" in caplog.text


def test_a_relay_log_of_another_cluster_is_refused(settings):
    RelayLog.open(settings.relay.url).commit(WindowRecord(0, 5, 4711, "t", 0, 0, 0, 0))
    with pytest.raises(WrongClusterError, match="is of cluster 4711"):
        run_land(settings, run_seconds=240)


@pytest.mark.slow
def test_landing_is_an_online_drainer_in_the_registry_and_a_pump_answers_in_its_place(
    settings, expected, upstream
):
    etcd = EtcdClient(settings.upstream.pd_urls, timeout_s=60)
    registry, node_id = Registry(etcd), PipelineIdentity.from_settings(settings).id

    def drainer() -> NodeStatus | None:
        return next((found for found in registry.drainers() if found.node_id == node_id), None)

    middle = expected[0][len(expected[0]) // 2][0]
    at_work = []

    def look(window):
        deadline = time.monotonic() + 60
        while (
            (entry := drainer()) is None or entry.state != "online"
        ) and time.monotonic() < deadline:
            time.sleep(0.02)
        at_work.append(entry)

    first = run_land(settings, start_ts=0, until_ts=middle, run_seconds=120, on_window=look)
    before = drainer()
    second = run_land(settings, until_ts=until(expected), run_seconds=120, on_window=look)
    after = drainer()
    pumps = [pump for pump in registry.pumps() if pump.state == "online"]
    etcd.close()
    assert {entry.state for entry in at_work} == {"online"}
    assert {entry.host for entry in at_work} <= {pump.host for pump in pumps}
    notify_drainers(at_work[:1])  # what an original pump that starts does
    assert (before.state, before.max_commit_ts) == ("paused", first.hi)
    assert after.max_commit_ts == second.hi > first.hi and after.update_ts > before.update_ts
    assert after.label == {
        "sluice": settings.relay.url,
        "downstream": "127.0.0.1:1, checkpoint tidb_binlog.checkpoint",
    }


def test_without_a_checkpoint_landing_does_not_begin_now_when_the_registry_knows_a_drainer(
    settings, expected, upstream, mariadb
):
    settings = dataclasses.replace(
        settings,
        downstream=dataclasses.replace(mariadb.downstream, checkpoint_schema="tidb_binlgo"),
        upstream=dataclasses.replace(settings.upstream, initial_commit_ts=-1),
    )
    with EtcdClient(settings.upstream.pd_urls, timeout_s=60) as etcd:
        Registry(etcd).update_drainer(
            NodeStatus("gone:8249", "10.0.0.1:8249", "offline", max_commit_ts=77)
        )
        try:
            with pytest.raises(
                NoCheckpointError,
                match=(
                    r"checkpoint tidb_binlgo\.checkpoint: there is no checkpoint.*drainer gone:8249"
                    r" \(offline\) through"
                    r" commit_ts 77.*initial-commit-ts = 77"
                ),
            ):
                run_land(settings, run_seconds=240)
            assert RelayLog.open(settings.relay.url).last() is None
            elsewhere = dataclasses.replace(
                settings,
                upstream=dataclasses.replace(
                    settings.upstream, unrelated_drainers=["gone:8249", *others(etcd)]
                ),
            )
            assert run_land(elsewhere, until_ts=1, run_seconds=240).hi > 1
        finally:
            etcd.delete("/tidb-binlog/v1/drainers/gone:8249")


def others(etcd):
    """Entries that tests before left behind."""
    return [drainer.node_id for drainer in Registry(etcd).drainers()]


@pytest.mark.slow
def test_landing_begins_where_a_drainer_stopped_with_the_schema_of_then(
    settings, expected, mariadb
):
    _, table, totals = expected
    at = totals.ddls[len(totals.ddls) // 2].commit_ts
    with (
        mariadb.connect() as connection,
        connection.cursor() as cursor,
        PDClient(settings.upstream.pd_urls, timeout_s=60) as pd,
    ):
        cursor.execute("CREATE DATABASE tidb_binlog")
        cursor.execute(
            "CREATE TABLE tidb_binlog.checkpoint(clusterID bigint unsigned primary key, checkPoint"
            " MEDIUMTEXT)"
        )
        left = (
            f'{{"consistent":false,"commitTS":{at},'
            '"ts-map":{"primary-ts":1,"secondary-ts":1},"schema-version":1}'
        )
        cursor.execute("INSERT INTO tidb_binlog.checkpoint VALUES (%s, %s)", (pd.cluster_id, left))
    settings = dataclasses.replace(settings, downstream=mariadb.downstream)
    run_land(settings, until_ts=until(expected), run_seconds=120)
    relay = RelayLog.open(settings.relay.url)
    windows = list(relay.windows(0))
    assert windows[0].lo == at
    assert relay.read(windows).to_pylist() == [
        change for change in table.to_pylist() if change["commit_ts"] > at
    ]


# From here on the pumps hold what no landing gets past.


def write(settings, make_payload):
    """Write a transaction to the pumps as TiDB would: (a timestamp before it, its start_ts, its
    commit_ts).
    """
    with (
        PDClient(settings.upstream.pd_urls, timeout_s=60) as pd,
        PumpClient(settings.upstream.pd_urls) as client,
    ):
        before, start_ts = pd.tso(), pd.tso()
        client.prewrite(start_ts, make_payload(start_ts))
        commit_ts = pd.tso()
        client.finish(
            start_ts,
            pb.binlog.Binlog(tp=1, start_ts=start_ts, commit_ts=commit_ts).SerializeToString(),
        )
    return before, start_ts, commit_ts


def test_rows_of_an_unknown_table_stop_landing_and_are_named(settings):
    lo, _, commit_ts = write(
        settings, lambda start_ts: prewrite(start_ts, mutation(987654, (INSERT, b"\x08\x02")))
    )
    with pytest.raises(
        UnknownTableError,
        match=f"commit_ts {commit_ts} on are of table id 987654.*`sluice txn skip {commit_ts}`",
    ):
        run_land(settings, start_ts=lo, run_seconds=240)
    relay = RelayLog.open(settings.relay.url)
    relay.overrides.add(Override(commit_ts, SKIP))
    run_land(settings, start_ts=lo, run_seconds=240, until_ts=commit_ts)
    windows = list(relay.windows(lo))
    assert set(relay.read(windows)["commit_ts"].to_pylist()) == {
        commit_ts
    }  # landed all the same: applying leaves it out
    assert not [window for window in windows if window.skipped]


@pytest.mark.slow
def test_a_payload_that_is_no_binlog_stops_landing_and_is_named(settings):
    garbled = pb.binlog.Binlog(tp=0, commit_ts=0, prewrite_value=b"\x12\x05ab")

    def payload(start_ts):
        garbled.start_ts = start_ts
        return garbled.SerializeToString()

    lo, start_ts, commit_ts = write(settings, payload)
    with pytest.raises(
        BinlogDecodeError,
        match=(
            rf"pump 127.0.0.1:\d+, transaction with commit_ts {commit_ts}, start_ts"
            rf" {start_ts}.*`sluice txn skip"
            rf" {commit_ts}`"
        ),
    ):
        run_land(settings, start_ts=lo, run_seconds=240)
    relay = RelayLog.open(settings.relay.url)
    assert relay.last() is None or relay.last().hi < commit_ts
    relay.overrides.add(Override(commit_ts, SKIP))
    run_land(settings, start_ts=lo, run_seconds=240, until_ts=commit_ts)
    assert [
        (entry["commit_ts"], entry["start_ts"])
        for window in relay.windows(lo)
        for entry in window.skipped
    ] == [(commit_ts, start_ts)]
    assert relay.last().hi >= commit_ts
