"""Snapshots beside a pipeline that runs, with live traffic: every table is what TiDB's was at the
snapshot's timestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from sluice.etl.downstream.ownership import OtherWriterError
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots import run
from sluice.etl.history.snapshots.from_downstream import write_ranges
from sluice.etl.history.snapshots.request import ARCHIVE, AUTO, DOWNSTREAM, TIDB, SnapshotRequest
from sluice.etl.history.snapshots.reuse import changed_tables, landed_windows
from sluice.etl.history.snapshots.run import create_snapshot, plan_snapshot, run_snapshot
from sluice.etl.tasks.job_kinds import begin, work
from sluice.relay import RelayLog
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotTable,
    snapshot_id,
)
from sluice.relay.jobs import CANCEL, CANCELLED, DONE, Runner
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline, typing
from tests.etl.history.snapshots.making import made, rows_of
from tests.etl.mariadb_fixture import MariaDBServer


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline(mariadb_server, spark_remote, tmp_path_factory.mktemp("snapshots")) as found:
        found.fill(transactions=40, rows=50)
        yield found
        found.control.stop()


def as_upstream(running: Pipeline, snapshot: ArchiveSnapshot) -> None:
    """Every table of the snapshot is what TiDB's was at its timestamp."""
    names = {str(name) for (name,) in running.upstream(f"SHOW TABLES FROM {DATABASE}", snapshot.ts)}
    assert {table.name for table in snapshot.tables} == names
    for table in snapshot.tables:
        found = rows_of(running.settings, snapshot, table.full_name)
        wanted = running.upstream(f"SELECT * FROM {table.full_name}", snapshot.ts)
        as_bytes = [tuple(v.encode() if isinstance(v, str) else v for v in row) for row in wanted]
        assert found == Counter(as_bytes), table.full_name


@pytest.mark.slow
def test_the_downstream_is_read_at_its_checkpoint_while_it_changes(running: Pipeline) -> None:
    running.traffic(updates=0.5)
    summary, snapshot = made(running.settings, SnapshotRequest(AUTO))
    assert summary.state == DONE
    assert snapshot.made_from.startswith("the downstream")
    as_upstream(running, snapshot)
    # Nobody stood still for it: what is committed now still arrives.
    running.caught_up()
    running.control.stop()


@pytest.mark.slow
def test_a_table_without_changes_is_referred_to_and_not_copied(running: Pipeline) -> None:
    running.control.stop()
    running.caught_up()
    _, first = made(running.settings, SnapshotRequest(DOWNSTREAM, full=True))
    assert first.refers_to == ()
    summary, second = made(running.settings, SnapshotRequest(TIDB))
    assert second.ts >= first.ts
    assert second.refers_to == (first.id,)
    assert (summary.copied_rows, summary.rows) == (0, first.rows)
    as_upstream(running, second)
    plan = plan_snapshot(running.settings, SnapshotRequest(TIDB, full=True))
    assert plan.older == ""
    assert plan.chunks
    # The files stay where they are, also when their own snapshot is forgotten.
    Archive.open(running.settings.archive_url).snapshots.forget(first.id)
    _, third = made(running.settings, SnapshotRequest(TIDB))
    assert third.refers_to == (first.id,)
    as_upstream(running, third)


@pytest.mark.slow
def test_an_older_snapshot_is_rolled_forward_by_spark_without_a_database(running: Pipeline) -> None:
    _, older = made(running.settings, SnapshotRequest(DOWNSTREAM))
    running.traffic(updates=0.5)
    before = len(running.control.numbered_commits())
    running.wait(lambda: len(running.control.numbered_commits()) > before + 20, "some traffic")
    running.control.stop()
    running.caught_up()
    job = create_snapshot(running.settings, SnapshotRequest(ARCHIVE), "test")
    summary = run_snapshot(running.settings, job.id, Runner("test"))
    snapshot = Archive.open(running.settings.archive_url).snapshots.get(summary.snapshot)
    assert snapshot.ts > older.ts
    assert summary.copied_rows > 0
    as_upstream(running, snapshot)


@pytest.mark.slow
def test_what_a_killed_job_has_read_of_the_downstream_goes_when_it_begins_anew(
    running: Pipeline,
) -> None:
    job = create_snapshot(running.settings, SnapshotRequest(DOWNSTREAM), "test")
    archive = Archive.open(running.settings.archive_url)
    left = snapshot_id(5, "left")
    archive.snapshots.begin(left, PendingSnapshot(job.id))
    archive.storage.create(f"snapshots/{left}/11/half.parquet", b"half")
    summary = run_snapshot(running.settings, job.id, Runner("test"))
    assert summary.state == DONE
    assert archive.storage.names(f"snapshots/{left}/11") == []
    assert archive.snapshots.find(left) is None


@pytest.mark.slow
def test_a_job_that_reads_the_downstream_is_given_up_at_its_next_border_and_leaves_nothing(
    running: Pipeline,
) -> None:
    job = create_snapshot(running.settings, SnapshotRequest(DOWNSTREAM, full=True), "test")
    snapshots = Archive.open(running.settings.archive_url).snapshots
    before = snapshots.all()
    job.order(CANCEL, "test")
    assert run_snapshot(running.settings, job.id, Runner("test")).state == CANCELLED
    assert snapshots.all() == before
    assert [name for name in snapshots.ids() if snapshots.pending(name) is not None] == []


@pytest.mark.ci_cases("before")
@pytest.mark.slow
@pytest.mark.parametrize(
    "at",
    ["before a table is read", "after all were read"],
)
def test_a_ddl_that_arrives_while_the_downstream_is_read_makes_the_job_begin_again_behind_it(
    running: Pipeline, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    name = f"extra_{at.split()[0]}"
    attempts: list[str] = []

    def read(*arguments: Any) -> Iterator[Any]:
        attempts.append(at)
        if len(attempts) == 1 and at.startswith("before"):
            alter()
        yield from write_ranges(*arguments)
        if len(attempts) == 1 and at.startswith("after"):
            alter()

    def alter() -> None:
        running.control.add_column(DATABASE, "load_1", name)
        shown = f"SHOW COLUMNS FROM {DATABASE}.load_1 LIKE '{name}'"
        running.wait(lambda: running.downstream(shown), "the column is downstream")
        running.caught_up()

    monkeypatch.setattr(run, "write_ranges", read)
    _, snapshot = made(running.settings, SnapshotRequest(DOWNSTREAM, full=True))
    assert len(attempts) == 2
    assert any(
        column["name"] == name for column in snapshot_table(snapshot, "load_1").table["columns"]
    )
    as_upstream(running, snapshot)


def snapshot_table(snapshot: ArchiveSnapshot, name: str) -> SnapshotTable:
    found = snapshot.table(DATABASE, name)
    assert found is not None
    return found


FORM: dict[str, Any] = {
    "source": None, "full": False, "plan_only": False, "escape_backslash": True,
}  # fmt: skip


def test_the_dag_makes_a_snapshot_when_one_is_due_or_asked_for(running: Pipeline) -> None:
    settings = running.settings
    never = replace(settings, archive=replace(settings.archive, snapshots_every=""))
    empty = replace(settings, archive=replace(settings.archive, url=f"{settings.relay.url}/x"))
    for one in (settings, never, empty):
        assert begin(one, "snapshot", FORM, "a run", scheduled=True)["job"] is None
    assert begin(settings, "snapshot", {**FORM, "plan_only": True}, "manual__1")["job"] is None
    name = begin(settings, "snapshot", FORM, "manual__1")["job"]
    assert name is not None
    assert begin(settings, "snapshot", FORM, "manual__2")["job"] == name  # the one that was begun
    result = work(settings, "snapshot", name, "manual__1")
    assert (
        Archive.open(settings.archive_url)
        .snapshots.get(result["snapshot"])
        .made_from.startswith("the downstream")
    )
    assert work(settings, "snapshot", None, "run 1") == {}


def test_the_command_plans_and_makes_a_snapshot_and_says_what_it_is(
    running: Pipeline, tmp_path: Path
) -> None:
    settings = running.settings
    typed = typing(settings, tmp_path)

    def snapshot(*arguments: str) -> Result:
        return typed("snapshot", *arguments)

    planned = snapshot("make", "--from", "tidb", "--full", "--plan")
    assert planned.return_value == 0, planned.exception
    assert "from TiDB at 127.0.0.1" in planned.output
    snapshots = Archive.open(settings.archive_url).snapshots
    before = set(snapshots.ids())
    done = snapshot("make", "--from", "downstream")
    assert done.return_value == 0, done.exception
    [made] = [snapshots.get(name) for name in snapshots.ids() if name not in before]
    assert f"{made.id}: {len(made.tables)} tables" in done.output
    assert made.id in snapshot("list").output
    assert snapshot("check", made.id).return_value == 0


@pytest.mark.slow
def test_tidb_is_read_by_spark(running: Pipeline) -> None:
    job = create_snapshot(running.settings, SnapshotRequest(TIDB, full=True), "test")
    summary = run_snapshot(running.settings, job.id, Runner("test"))
    snapshot = Archive.open(running.settings.archive_url).snapshots.get(summary.snapshot)
    assert summary.copied_rows == snapshot.rows
    as_upstream(running, snapshot)


def test_what_is_unchanged_is_not_known_where_windows_are_missing(running: Pipeline) -> None:
    archive, relay = (
        Archive.open(running.settings.archive_url),
        RelayLog.open(running.settings.relay.url),
    )
    last = relay.last()
    first = archive.log.first() or relay.first()
    assert last is not None
    assert first is not None
    for from_ts, to_ts in ((first.lo - 1, last.hi), (first.lo, last.hi + 10**12)):
        assert (
            changed_tables(landed_windows(archive, relay, from_ts, to_ts), from_ts, to_ts) is None
        )
    assert changed_tables(landed_windows(archive, relay, first.lo, last.hi), first.lo, last.hi)


def test_without_a_snapshot_there_is_nothing_to_roll_forward(running: Pipeline) -> None:
    empty = replace(
        running.settings,
        archive=replace(running.settings.archive, url=f"{running.settings.relay.url}/x"),
    )
    with pytest.raises(SnapshotError, match="no snapshot that could be rolled forward"):
        plan_snapshot(empty, SnapshotRequest(ARCHIVE))


@pytest.mark.ci_cases("from-the-archive")
@pytest.mark.slow
@pytest.mark.parametrize(
    "commands",
    [
        (("snapshot", "make", "--from", "archive"), ("bootstrap", "--from", "snapshot://")),
        (("bootstrap", "--from", "tidb://"),),
    ],
    ids=["from-the-archive", "from-tidb"],
)
def test_a_lost_downstream_is_a_replica_again_with_nothing_lost_or_doubled(
    running: Pipeline,
    mariadb_server: MariaDBServer,
    tmp_path: Path,
    commands: tuple[tuple[str, ...], ...],
) -> None:
    typed = typing(running.settings, tmp_path)
    running.stop()
    before = Pipeline(running.settings, running.control, running.sql_port)
    before.start()
    made(running.settings, SnapshotRequest(DOWNSTREAM))
    before.traffic(updates=0.5)
    before.caught_up()
    before.stop()
    mariadb_server.empty()  # at the address of the one that is lost there is another server
    again = Pipeline(running.settings, running.control, running.sql_port)
    again.start()
    try:
        landing, applying = again.threads
        applying.join(180)
        assert isinstance(lost := again.errors.pop(), OtherWriterError)
        assert "the checkpoint that this pipeline wrote is gone" in str(lost)
        assert "`sluice bootstrap`" in lost.hint
        assert landing.is_alive()
        for command in commands:
            done = typed(*command)
            assert done.return_value == 0, (command, done.output, done.exception)
        again.start_applying()
        running.control.stop()
        again.compared()
    finally:
        again.stop()
