"""Backfills beside a pipeline that runs, with live traffic: a damaged table is made whole, and
nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.etl.copy import CopyError
from sluice.etl.copy.backfill import (
    BackfillError,
    BackfillRequest,
    cancel_backfill,
    create_backfill,
    plan_backfill,
    run_backfill,
    throttle,
)
from sluice.etl.copy.backfill.reader import ReadRequest, ReadResult
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.downstream import ChunkResult
from sluice.relay import RelayLog
from sluice.relay.jobs import CANCEL, Job, JobOverlapError, Jobs, Runner
from tests.etl.copy.backfill.killed_backfill import killed
from tests.etl.copy.backfill.running import DATABASE, Pipeline, one_failure_alone, pipeline
from tests.etl.mariadb_fixture import MariaDBServer


@pytest.fixture(scope="module")
def shared(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline(mariadb_server, spark_remote, tmp_path_factory.mktemp("running")) as made:
        made.fill(transactions=60, rows=100)
        yield made


@pytest.fixture
def running(shared: Pipeline, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    shared.traffic(updates=0)
    with one_failure_alone(shared, request) as found:
        yield found
    shared.control.stop()  # else the slower the machine, the larger the tables of the next test


def damage(running: Pipeline) -> None:
    running.downstream(f"DELETE FROM {DATABASE}.load_1 WHERE id % 7 = 0 AND id < 3000")
    running.downstream(
        f"UPDATE {DATABASE}.load_1 SET pad = 'damaged' WHERE id % 11 = 0 AND id < 3000"
    )
    running.downstream(
        f"INSERT INTO {DATABASE}.load_1 VALUES (-5, 1, 'extra'), (900000000, 1, 'extra')"
    )


@pytest.mark.slow
def test_what_a_failed_test_leaves_is_gone_before_the_next_one(running: Pipeline) -> None:
    session = SimpleNamespace(testsfailed=0)
    with one_failure_alone(running, SimpleNamespace(session=session)):  # type: ignore[arg-type]
        damage(running)
        asked(running, f"{DATABASE}.txn")
        session.testsfailed += 1
    assert Jobs(RelayLog.open(running.settings.relay.url).storage).unfinished() == []
    running.compared()


def reading_with_updates(running: Pipeline) -> Callable[[ReadRequest], ReadResult]:
    """From the first read on rows are updated, damaged and missing ones among them."""
    began: list[int] = []

    def read(order: ReadRequest) -> ReadResult:
        if not began:
            began.append(order.ts)
            running.traffic(updates=0.5)
        return running.read(order)

    return read


@pytest.mark.slow
def test_a_damaged_table_is_whole_again_while_it_changes(running: Pipeline) -> None:
    damage(running)
    job = asked(running, f"{DATABASE}.load_1")
    summary = run_backfill(
        running.settings, job.id, Runner("test"), read=reading_with_updates(running)
    )
    running.traffic(updates=0)
    found = summary.tables[f"{DATABASE}.load_1"]
    assert (
        summary.state == "done"
        and found["deleted"] == 2
        and found["inserted"]
        and found["replaced"]
    )
    assert found["rows"] == found["same"] + found["inserted"] + found["replaced"]
    running.compared()


@pytest.mark.slow
def test_a_table_that_grows_faster_than_its_chunks_is_done_and_whole(
    running: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows behind the end that are there downstream alone go, too."""
    monkeypatch.setattr(throttle, "_MAX_ROWS", 500)
    name = f"{DATABASE}.load_1"
    (before,) = running.upstream(f"SELECT COUNT(*) FROM {name}")[0]
    damage(running)
    reads: list[int] = []

    def read(order: ReadRequest) -> ReadResult:
        reads.append(order.ts)
        assert len(reads) < 100, "the job follows the table"
        running.grow(transactions=15, rows=100)
        return running.read(order)

    job = asked(running, name)
    summary = run_backfill(running.settings, job.id, Runner("test"), read=read)
    found = summary.tables[name]
    (after,) = running.upstream(f"SELECT COUNT(*) FROM {name}")[0]
    assert summary.state == "done" and found["deleted"] == 2 and found["inserted"]
    assert after > 2 * before and found["rows"] < after
    running.traffic(updates=0)
    running.compared()


@pytest.mark.slow
def test_all_tables_of_a_job_are_mended_before_applying_is_waited_for(running: Pipeline) -> None:
    """Applying may have stopped at the last of them."""
    names = f"{DATABASE}.load_1", f"{DATABASE}.txn"
    aligned_chunks = RelayLog.open(running.settings.relay.url).aligned_chunks
    mended: list[int] = []

    def read(order: ReadRequest) -> ReadResult:
        mended.append(len(aligned_chunks.repairs()))
        return running.read(order)

    job = create_backfill(running.settings, BackfillRequest(names), "test")
    assert run_backfill(running.settings, job.id, Runner("test"), read=read).state == "done"
    assert mended[0] == 2
    assert aligned_chunks.repairs() == []


@pytest.mark.slow
def test_comparing_tells_what_differs_and_writes_nothing(running: Pipeline) -> None:
    name = f"{DATABASE}.txn"
    assert running.backfill(name, mode="compare").differing == 0
    running.downstream(f"UPDATE {name} SET note = 'damaged' WHERE id = 7")
    running.downstream(f"DELETE FROM {name} WHERE id = 8")
    running.downstream(f"INSERT INTO {name} VALUES (-1, 'extra')")
    found = running.backfill(name, mode="compare")
    assert found.differing == 3
    assert set(found.tables[name]["examples"]) == {
        "differs: id=7",
        "missing: id=8",
        "not upstream: id=-1",
    }
    assert running.downstream(f"SELECT note FROM {name} WHERE id = 7") == [("damaged",)]
    assert running.backfill(name).differing == 3
    running.compared()


@pytest.mark.slow
def test_missing_rows_come_and_others_stay_as_they_are(running: Pipeline) -> None:
    name = f"{DATABASE}.txn"
    running.downstream(f"UPDATE {name} SET note = 'kept' WHERE id = 9")
    running.downstream(f"DELETE FROM {name} WHERE id BETWEEN 10 AND 14")
    found = running.backfill(name, mode="missing")
    assert (found.total("inserted"), found.total("kept"), found.total("replaced")) == (5, 1, 0)
    assert running.downstream(f"SELECT note FROM {name} WHERE id = 9") == [("kept",)]
    assert running.backfill(name).total("replaced") == 1
    running.compared()


@pytest.mark.slow
def test_only_the_rows_asked_for_are_copied(running: Pipeline) -> None:
    name = f"{DATABASE}.load_1"
    running.downstream(f"UPDATE {name} SET pad = 'damaged' WHERE id IN (100, 200, 300)")
    running.downstream(f"DELETE FROM {name} WHERE id IN (101, 201, 301)")
    assert running.backfill(name, from_key="100", to_key="200").total("inserted") == 1
    assert running.downstream(f"SELECT id FROM {name} WHERE pad = 'damaged' ORDER BY id") == [
        (200,),
        (300,),
    ]
    assert running.backfill(name, where="id IN (200, 201) OR id < -3").differing == 2
    assert running.downstream(f"SELECT id FROM {name} WHERE pad = 'damaged'") == [(300,)]
    running.backfill(name, rows_per_second=100_000)
    running.compared()


def config_of(running: Pipeline, folder: Path) -> Path:
    upstream, downstream = running.settings.upstream, running.settings.downstream
    config = folder / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "{upstream.pd_urls}"\nsql-host = "{upstream.sql_host}"\nsql-port ='
        f' {upstream.sql_port}\n[relay]\nurl = "{running.settings.relay.url}"\n[downstream]\nhost ='
        f' "{downstream.host}"\nport = {downstream.port}\nuser = "{downstream.user}"\n'
    )
    return config


def empty(relay: RelayLog) -> bool:
    return relay.storage.names("aligned-chunks") == []


def asked(running: Pipeline, *tables: str, **more: object) -> Job:
    return create_backfill(running.settings, BackfillRequest(tables, **more), "test")  # type: ignore[arg-type]


@pytest.mark.slow
def test_rows_that_are_named_by_conditions_are_copied_and_no_others(running: Pipeline) -> None:
    name = f"{DATABASE}.load_1"
    missing, changed, surplus = 21, 22, -7
    running.downstream(f"DELETE FROM {name} WHERE id = {missing}")
    running.downstream(f"UPDATE {name} SET pad = 'damaged' WHERE id = {changed}")
    running.downstream(f"INSERT INTO {name} VALUES ({surplus}, 1, 'surplus')")
    only = {name: (f"`id` IN ({missing},{surplus})", f"`id` = {changed} OR `id` = 23")}
    summary = running.backfill(name, only=only)
    found = summary.tables[name]
    assert [
        found[kind] for kind in ("chunks", "rows", "inserted", "replaced", "deleted", "same")
    ] == [2, 3, 1, 1, 1, 1]
    running.compared()


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_and_leaves_nothing_behind(
    running: Pipeline, tmp_path: Path
) -> None:
    config = config_of(running, tmp_path)
    damage(running)
    job = asked(running, f"{DATABASE}.load_1")
    relay = RelayLog.open(running.settings.relay.url)
    for at, before in ((2, False), (3, True), (5, False), (7, True)):
        assert killed(config, job.id, at, before=before) == -9
    assert killed(config, job.id, 1, before=False, what="remove") == -9
    assert not empty(relay)  # an outcome, mostly, whose aligned chunk is gone
    summary = run_backfill(running.settings, job.id, Runner("test"), read=running.read)
    found = summary.tables[f"{DATABASE}.load_1"]
    assert found["deleted"] == 2 and found["inserted"] and found["replaced"]
    running.wait(lambda: empty(relay), "applying has taken back what it settled too late")
    assert relay.storage.names(f"jobs/{job.id}/rows") == []
    assert running.downstream("SELECT COUNT(*) FROM tidb_binlog.sluice_chunks") == [(0,)]
    running.compared()


@pytest.mark.slow
def test_a_lost_connection_is_tried_again(running: Pipeline) -> None:
    failures = [CopyError("lost", transient=True), CopyError("lost again", transient=True)]

    def read(order: ReadRequest) -> ReadResult:
        if failures:
            raise failures.pop()
        return running.read(order)

    job = asked(running, f"{DATABASE}.txn", mode="compare")
    summary = run_backfill(running.settings, job.id, Runner("test"), read=read)
    assert summary.state == "done" and not failures and summary.differing == 0


@pytest.mark.slow
def test_what_can_not_be_read_ends_the_run_and_the_job_goes_on_later(running: Pipeline) -> None:
    def refused(order: ReadRequest) -> ReadResult:
        with TidbSession(TidbAddress.from_settings(running.settings.upstream)) as session:
            session.query("SELECT nothing FROM sluice_load.txn")
        raise AssertionError

    job = asked(running, f"{DATABASE}.txn", mode="compare")
    with pytest.raises(CopyError, match="Unknown column"):
        run_backfill(running.settings, job.id, Runner("test"), read=refused)
    assert job.status().state == "failed"
    assert run_backfill(running.settings, job.id, Runner("test"), read=running.read).state == "done"


@pytest.mark.slow
def test_orders_stop_a_job_between_two_chunks_and_a_job_in_the_way_is_named(
    running: Pipeline,
) -> None:
    job = asked(running, f"{DATABASE}.txn", rows_per_second=1)

    def read(order: ReadRequest) -> ReadResult:
        job.order(CANCEL, "ann")
        return running.read(order)

    with pytest.raises(JobOverlapError, match="asked for by test"):
        Jobs(RelayLog.open(running.settings.relay.url).storage).create(
            "backfill", {}, job.spec.touches, "bob"
        )
    with pytest.raises(BackfillError, match="isn't over"):
        asked(running, f"{DATABASE}.t*")
    assert run_backfill(running.settings, job.id, Runner("test"), read=read).state == "cancelled"
    other = asked(running, f"{DATABASE}.txn")
    assert cancel_backfill(running.settings, other.id, Runner("test")) == ""
    assert other.status().state == "cancelled"
    running.compared()


@pytest.mark.slow
def test_a_job_cancelled_while_nothing_applies_leaves_no_aligned_chunk_and_no_note(
    running: Pipeline,
) -> None:
    relay = RelayLog.open(running.settings.relay.url)
    job = asked(running, f"{DATABASE}.txn")
    for noted in (job.id, "forgotten"):
        running.downstream(
            f"INSERT INTO tidb_binlog.sluice_chunks VALUES ('{noted}', 7,"
            f" '{ChunkResult().to_text()}')"
        )

    def read(order: ReadRequest) -> ReadResult:
        job.order(CANCEL, "ann")
        return running.read(order)

    relay.change_control(lambda control: replace(control, apply_paused=True))
    try:
        assert (
            run_backfill(running.settings, job.id, Runner("test"), read=read).state == "cancelled"
        )
        assert empty(relay)
        assert running.downstream("SELECT * FROM tidb_binlog.sluice_chunks") == []
    finally:
        relay.change_control(lambda control: replace(control, apply_paused=False))
    running.compared()


@pytest.mark.slow
def test_a_plan_tells_what_is_done_and_what_hinders_it(running: Pipeline) -> None:
    plan = plan_backfill(running.settings, BackfillRequest((f"{DATABASE}.*", "nothing.*")))
    assert [table.name for table in plan.tables] == [f"{DATABASE}.load_1", f"{DATABASE}.txn"]
    assert plan.tables[0].key == ("id",) and [p for p in plan.problems if "nothing.*" in p] == list(
        plan.problems
    )
    wrong = plan_backfill(
        running.settings, BackfillRequest((f"{DATABASE}.txn",), where="nonsense = 1")
    )
    assert any("Unknown column 'nonsense'" in problem for problem in wrong.problems)


@pytest.mark.slow
def test_a_table_that_is_not_there_is_made_and_filled_while_its_rows_change(
    running: Pipeline,
) -> None:
    running.control.stop()
    running.caught_up()
    running.downstream(f"DROP TABLE {DATABASE}.load_1")
    job = asked(running, f"{DATABASE}.load_1")
    summary = run_backfill(
        running.settings, job.id, Runner("test"), read=reading_with_updates(running)
    )
    found = summary.tables[f"{DATABASE}.load_1"]
    assert summary.state == "done" and found["inserted"] and found["deleted"] == 0
    relay = RelayLog.open(running.settings.relay.url)
    running.wait(lambda: empty(relay), "applying has taken back what it settled too late")
    running.compared()
