"""Rows that were damaged downstream are repaired from the relay log beside a pipeline that runs,
with live traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.etl.changes.planning import BatchPayload, prepare
from sluice.etl.verify.reapply import (
    ReplayRangeError,
    ReplayRequest,
    ReplaySummary,
    cancel_reapply,
    create_or_resume,
    make_replay_plan,
    run_reapply,
)
from sluice.etl.verify.reapply.repair_run import latest_rows_options
from sluice.etl.verify.reapply.row_repair import RowRepair
from sluice.relay import RelayLog
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import CANCELLED, DONE, PAUSE, PAUSED, Jobs, Runner
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline
from tests.etl.mariadb_fixture import MariaDBServer

LOAD, TXN = f"{DATABASE}.load_1", f"{DATABASE}.txn"


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline(mariadb_server, spark_remote, tmp_path_factory.mktemp("running")) as made:
        made.fill(transactions=60, rows=100)
        made.traffic(updates=0)
        yield made
        made.control.stop()


def relay_of(running: Pipeline) -> RelayLog:
    return RelayLog.open(running.settings.relay.url)


def since_the_beginning(running: Pipeline, *tables: str) -> ReplayRequest:
    first, last = relay_of(running).first(), relay_of(running).last()
    assert first is not None and last is not None
    return ReplayRequest(first.lo, last.hi, tables=tables)


def repair(running: Pipeline, request: ReplayRequest, updates: float = 0) -> ReplaySummary:
    """`updates`: their share of the traffic from when on rows that are missing stop nothing."""
    settings = running.settings
    options = latest_rows_options(settings, request)
    waiting = [updates] if updates else []

    def newest(windows: BatchPayload):
        if waiting and relay_of(running).aligned_chunks.repairs():
            running.traffic(waiting.pop())
        return prepare(settings.relay.url, windows, options)

    return run_reapply(
        settings, create_or_resume(settings, request, "test"), Runner("test"), prepare=newest
    )


@pytest.mark.slow
def test_what_was_touched_is_whole_again_while_it_changes(running: Pipeline) -> None:
    request = since_the_beginning(running, LOAD)
    running.downstream(f"DELETE FROM {LOAD} WHERE id % 7 = 0 AND id < 3000")
    running.downstream(f"UPDATE {LOAD} SET pad = 'damaged' WHERE id % 11 = 0 AND id < 3000")
    done = repair(running, request, updates=0.5)
    running.traffic(updates=0)
    counts = done.repaired[LOAD]
    assert done.is_done and counts["inserted"] and counts["replaced"]
    assert counts["rows"] == counts["same"] + counts["inserted"] + counts["replaced"]
    running.compared()
    relay = relay_of(running)
    assert Jobs(relay.storage).get(done.job).entry().state == DONE
    assert not relay.aligned_chunks.repairs() and not relay.aligned_chunks.of_job(done.job)
    assert f"job-{done.job}" not in Consumers(relay).positions()


@pytest.mark.slow
def test_rows_that_were_not_touched_in_the_range_stay_as_they_are(running: Pipeline) -> None:
    commits = [ts for ts, _, number in running.control.numbered_commits() if number is not None]
    relay = relay_of(running)
    last = relay.last()
    assert last is not None
    since = commits[30]
    before, after = running.upstream(f"SELECT MIN(id), MAX(id) FROM {TXN} WHERE id <= 60", since)[0]
    assert after < 60
    running.downstream(f"UPDATE {TXN} SET note = 'damaged' WHERE id IN ({before}, {after + 1})")
    done = repair(running, ReplayRequest(since, last.hi, tables=(TXN,)))
    assert done.repaired[TXN]["replaced"] == 1
    assert running.downstream(f"SELECT id FROM {TXN} WHERE note = 'damaged'") == [(before,)]
    repair(running, since_the_beginning(running, TXN))
    running.compared()


@pytest.mark.slow
def test_a_repair_that_was_paused_goes_on_without_doing_a_chunk_again(
    running: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.etl.verify.reapply.row_repair.CHUNK_ROWS", 25)
    sixty = running.control.numbered_commits()[59][0]
    request = replace(since_the_beginning(running, TXN), until=sixty)
    job = create_or_resume(running.settings, request, "test")
    note, noted, bring, tries = RowRepair._note, [], RowRepair._repair_chunk, []

    def first_missed(self: RowRepair, *of: object) -> object:
        """The first chunk comes to nothing, as when applying didn't wait for it, and is made
        smaller.
        """
        tries.append(of)
        return bring(self, *of) if len(tries) > 1 else None  # type: ignore[arg-type]

    def then_pause(self: RowRepair, *of: object) -> None:
        note(self, *of)  # type: ignore[arg-type]
        noted.append(of[3])
        if len(noted) == 1:
            job.order(PAUSE, "test")

    monkeypatch.setattr(RowRepair, "_note", then_pause)
    monkeypatch.setattr(RowRepair, "_repair_chunk", first_missed)
    assert not repair(running, request).is_done
    assert job.entry().state == PAUSED and len(noted) == 1
    assert repair(running, request).is_done
    left = job.status().progress.tables[TXN]
    assert left.percent == 100 and left.rows_in_all == sum(noted)
    running.compared()


@pytest.mark.slow
def test_a_repair_that_is_given_up_leaves_nothing_behind(
    running: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = since_the_beginning(running, TXN)

    def broken_off(self: RowRepair, *of: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RowRepair, "_note", broken_off)
    with pytest.raises(KeyboardInterrupt):
        repair(running, request)
    monkeypatch.undo()
    relay = relay_of(running)
    job = Jobs(relay.storage).list()[-1]
    assert job.entry().state == PAUSED and relay.aligned_chunks.repairs()
    cancel_reapply(running.settings, job, Runner("test"))
    assert job.entry().state == CANCELLED
    assert (
        not relay.aligned_chunks.repairs() and f"job-{job.id}" not in Consumers(relay).positions()
    )
    running.compared()


@pytest.mark.slow
def test_what_a_repair_cannot_do_is_refused_by_name(running: Pipeline) -> None:
    request = since_the_beginning(running, "nothing.here")
    with pytest.raises(ReplayRangeError, match=r"--table nothing\.here: no such table"):
        create_or_resume(running.settings, request, "test")
    assert (
        "which tables? Name those"
        in make_replay_plan(running.settings, since_the_beginning(running)).problems[-1]
    )
