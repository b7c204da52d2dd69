"""Snapshots made from real Dumpling folders are those at their positions, also after kills."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.devstack.stack import Stack
from sluice.etl.copy import BootstrapRequest, CopyError, plan_bootstrap
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.worker import make_loads
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots import from_source
from sluice.etl.history.snapshots.request import SnapshotRequest
from sluice.etl.history.snapshots.run import (
    cancel_snapshot,
    create_snapshot,
    plan_snapshot,
    run_snapshot,
)
from sluice.etl.settings import Settings
from sluice.etl.settings.rules import parse_filter
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from sluice.relay.jobs import CANCEL, CANCELLED, DONE, PAUSE, PAUSED, Jobs, Runner
from sluice.tidb.schema import Table
from tests.etl.copy.copying import CLUSTER, RECORDING, settings_of
from tests.etl.copy.test_bootstrap_command import upstream
from tests.etl.history.snapshots import killed_snapshot
from tests.etl.history.snapshots.making import here, made, rows_of
from tests.etl.history.snapshots.recorded_rows import definitions, recorded_rows, recorded_snapshot
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, VARIABLE, hashed
from tests.etl.snapshots import differences
from tests.etl.stopped_work import Workshop

__all__ = ["upstream"]

ROOT = Path(__file__).resolve().parents[4]
SQL = str(RECORDING / "dump-sql")


@pytest.fixture(scope="module")
def pd_url(upstream: Stack) -> str:
    return f"http://127.0.0.1:{upstream.site().ports['cluster']}"


@pytest.fixture
def settings(pd_url: str, tmp_path: Path) -> Settings:
    return killed_snapshot.settings_of(str(tmp_path), pd_url)


def killed(settings: Settings, name: str, at: int) -> None:
    """Run a job in a process of its own, which is killed before its order number `at`."""
    folder = settings.relay.url.removeprefix("file://").removesuffix("/relay")
    command = [
        sys.executable,
        "-m",
        killed_snapshot.__name__,
        folder,
        settings.upstream.pd_urls,
        name,
        str(at),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "label"), [("dump-sql", "dump_sql"), ("dump-csv", "dump_csv")])
def test_a_snapshot_of_a_dump_holds_every_table_as_at_its_position(
    settings: Settings, folder: str, label: str
) -> None:
    summary, snapshot = made(settings, SnapshotRequest(str(RECORDING / folder)))
    listed = recorded_snapshot(RECORDING, label)
    assert (summary.state, snapshot.ts) == (DONE, listed["ts"])
    known = definitions(RECORDING, snapshot.ts)
    assert {table.full_name for table in snapshot.tables} == {
        table.full_name for table in known.tables
    }
    for table in known.tables:
        if table.full_name in listed["tables"] and table.is_base_table:
            found = rows_of(settings, snapshot, table.full_name)
            assert found == recorded_rows(RECORDING, label, table), table.full_name
    assert summary.copied_rows == snapshot.rows > 7_900


@pytest.mark.slow
def test_a_snapshot_loaded_into_an_empty_database_is_the_snapshot(
    settings: Settings, mariadb: MariaDBServer, tmp_path: Path
) -> None:
    _, snapshot = made(settings, SnapshotRequest(SQL))
    source = SnapshotSource.from_snapshot(settings.archive_url, snapshot)
    copy = BootstrapPlanner(
        settings_of(mariadb, tmp_path / "other"), source, source.definitions(), CLUSTER
    )
    summary = copy.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
    assert summary.rows == snapshot.rows
    assert differences(RECORDING, "dump_sql", mariadb) == []


@pytest.mark.slow
def test_a_bootstrap_begins_at_a_snapshot_as_at_a_dump(
    settings: Settings, mariadb: MariaDBServer
) -> None:
    own = replace(settings, downstream=mariadb.downstream)
    with pytest.raises(CopyError, match="has no snapshot"):
        plan_bootstrap(own, BootstrapRequest("snapshot://"))
    _, snapshot = made(settings, SnapshotRequest(SQL))
    for url in ("snapshot://", f"snapshot://{snapshot.id}"):
        plan = plan_bootstrap(own, BootstrapRequest(url))
        assert (plan.ts, plan.problems) == (snapshot.ts, ())
        assert len(plan.chunks) == sum(len(table.files) for table in snapshot.tables)


@pytest.mark.slow
def test_a_dump_that_lacks_tables_is_refused_by_name(settings: Settings) -> None:
    plan = plan_snapshot(settings, SnapshotRequest(str(RECORDING / "dump-csv-plain")))
    assert any("doesn't hold" in problem and "types." in problem for problem in plan.problems)
    with pytest.raises(SnapshotError, match="a snapshot has all tables"):
        create_snapshot(settings, SnapshotRequest(str(RECORDING / "dump-csv-plain")), "test")
    assert Jobs(RelayLog.open(settings.relay.url).storage).list() == []


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 20])
def test_a_job_that_is_killed_goes_on_with_what_is_left(
    settings: Settings, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_source, "_MAX_GROUP_CHUNKS", killed_snapshot.CHUNKS_A_GROUP)
    job = create_snapshot(settings, SnapshotRequest(SQL), "test")
    killed(settings, job.id, at)
    snapshots = Archive.open(settings.archive_url).snapshots
    assert snapshots.all() == []
    again: list[int] = []
    summary = run_snapshot(settings, job.id, Runner("test"), make=here(settings, job, again.append))
    plan = job.plan()
    assert plan is not None
    assert (summary.state, summary.snapshot) == (DONE, plan["snapshot"])
    # Two groups may be under way at a time.
    assert len(plan["chunks"]) - at <= len(again) <= len(plan["chunks"]) - max(at - 4, 0)
    (snapshot,) = snapshots.all()
    assert snapshot.rows == sum(
        recorded_rows(RECORDING, "dump_sql", t).total() for t in tables_at(snapshot.ts)
    )
    assert files_of(settings, snapshot.id) == {
        file.path for table in snapshot.tables for file in table.files
    } | {snapshot.path}


@pytest.mark.slow
def test_wherever_one_process_stands_still_another_makes_the_snapshot_and_it_is_made_once(
    settings: Settings, pd_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sum(
        recorded_rows(RECORDING, "dump_sql", t).total()
        for t in tables_at(recorded_snapshot(RECORDING, "dump_sql")["ts"])
    )
    with Workshop(killed_snapshot.__name__) as shop:
        for stop in (40, 100):
            folder = tmp_path / str(stop)
            own = killed_snapshot.settings_of(str(folder), pd_url)
            job = create_snapshot(own, SnapshotRequest(SQL), "test")
            asked = str(folder), pd_url, job.id
            with shop.stopped(killed_snapshot.make, asked, folder / "first", stop) as first:
                assert shop.start(killed_snapshot.make, asked, folder / "second").ended() == "done"
                (snapshot,) = Archive.open(own.archive_url).snapshots.all()
                root = Path(own.archive_url.removeprefix("file://"))
                named = {file.path for table in snapshot.tables for file in table.files} | {
                    snapshot.path
                }
                written = {path: (root / path).stat().st_mtime_ns for path in named}
                first.wake()
                assert re.search(
                    r"LeaseLostError: .* was taken over by test .*, and is done", first.ended()
                ), stop
            assert Archive.open(own.archive_url).snapshots.all() == [snapshot]
            assert (snapshot.rows, job.status().state) == (whole, DONE)
            assert {path: (root / path).stat().st_mtime_ns for path in named} == written, (
                first.steps()[stop - 1]
            )


def tables_at(ts: int) -> list:  # type: ignore[type-arg]
    listed = recorded_snapshot(RECORDING, "dump_sql")["tables"]
    return [
        one
        for one in definitions(RECORDING, ts).tables
        if one.full_name in listed and one.is_base_table
    ]


def files_of(settings: Settings, name: str) -> set[str]:
    root = Path(settings.archive_url.removeprefix("file://"))
    return {
        str(path.relative_to(root))
        for path in (root / "snapshots" / name).rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_job_pauses_at_its_next_border_and_goes_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_source, "_MAX_GROUP_CHUNKS", killed_snapshot.CHUNKS_A_GROUP)
    job = create_snapshot(settings, SnapshotRequest(SQL), "test")
    count: list[int] = []

    def pausing(done: int) -> None:
        count.append(done)
        if done == 5:
            job.order(PAUSE, "test")

    paused = run_snapshot(settings, job.id, Runner("test"), make=here(settings, job, pausing))
    # An order is heard within a moment; a fast machine may be through by then.
    if paused.state == PAUSED:
        assert Archive.open(settings.archive_url).snapshots.all() == []
        paused = run_snapshot(
            settings, job.id, Runner("test"), make=here(settings, job, count.append)
        )
    assert paused.state == DONE
    assert len(count) == len((job.plan() or {})["chunks"])


@pytest.mark.slow
def test_a_job_that_is_cancelled_leaves_nothing(settings: Settings) -> None:
    job = create_snapshot(settings, SnapshotRequest(SQL), "test")
    killed(settings, job.id, 7)
    name = (job.plan() or {})["snapshot"]
    assert len(files_of(settings, name)) > 2
    job.order(CANCEL, "test")
    assert cancel_snapshot(settings, job.id, Runner("test")).state == CANCELLED
    assert files_of(settings, name) == {
        f"snapshots/{name}/snapshot.json"
    }  # a note that it was forgotten
    assert Archive.open(settings.archive_url).snapshots.all() == []


@pytest.mark.slow
def test_what_a_cancelled_jobs_process_left_goes_with_the_next_snapshot(settings: Settings) -> None:
    job = create_snapshot(settings, SnapshotRequest(SQL), "test")
    killed(settings, job.id, 7)
    name = (job.plan() or {})["snapshot"]
    job.order(CANCEL, "test")
    with job.run(Runner("test")) as run:
        run.end(CANCELLED)  # and died before it had removed anything
    _, snapshot = made(settings, SnapshotRequest(SQL))
    assert files_of(settings, name) == {f"snapshots/{name}/snapshot.json"}
    assert Archive.open(settings.archive_url).snapshots.all() == [snapshot]


@pytest.mark.slow
def test_a_snapshot_of_a_pipeline_whose_relay_log_is_masked_holds_masked_values(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    rules = {
        "columns": [{"tables": ["bank.ledger"], "mask": {"memo": "hash"}}],
        "mask": {"key-env": VARIABLE},
    }
    masking = replace(settings, filters=parse_filter(rules)[0])
    _, snapshot = made(masking, SnapshotRequest(SQL))
    (found,) = (one for one in snapshot.tables if one.full_name == "bank.ledger")
    table = next(
        one for one in definitions(RECORDING, snapshot.ts).tables if one.full_name == "bank.ledger"
    )
    at = [column.name for column in table.stored_columns].index("memo")
    clear = recorded_rows(RECORDING, "dump_sql", table)
    masked = {hashed(row[at].decode()) for row in clear if row[at]}
    there = {row[at].decode() for row in rows_of(masking, snapshot, "bank.ledger") if row[at]}
    assert there == masked and len(there) > 2
    (memo,) = (one for one in Table.from_json(found.table).columns if one.name == "memo")
    assert memo.landed_mask and not memo.mask
