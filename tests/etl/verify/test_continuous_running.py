"""Continuous verification beside a pipeline that runs, with live traffic: what was changed is
compared again, the whole by and by, and nothing is reported that is the same.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.copy.backfill import run_backfill
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.display_units import counted
from sluice.etl.settings import Verify
from sluice.etl.verify import VerifyError, VerifyRequest, VerifySummary, create_verify, run_verify
from sluice.etl.verify.continuous import ContinuousSummary, ContinuousVerifier
from sluice.etl.verify.repair import create_repair, recheck_request, repair_sql
from sluice.relay import ClaimLostError, RelayLog, TableRepair
from sluice.relay.jobs import Runner
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline, typing
from tests.etl.mariadb_fixture import MariaDBServer

NAME = f"{DATABASE}.load_1"
FAST = Verify(rows_per_second=1_000_000_000, megabytes_per_second=1_000_000, delay_ms=1)
_CLOCKS = itertools.count(1_000_000_000_000, 1000 * 86_400_000)
"""Each process begins long after the one before: another round is due."""


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline(
        mariadb_server, spark_remote, tmp_path_factory.mktemp("running"), verify=FAST
    ) as made:
        made.fill(transactions=30, rows=100)
        yield made
        made.control.stop()


class Watcher:
    """One process of it, pass by pass, by a clock of its own."""

    def __init__(self, running: Pipeline, upstream: UpstreamCatalog) -> None:
        self.now_ms = next(_CLOCKS)
        self.work = ContinuousVerifier(
            running.settings, upstream, threading.Event(), lambda: self.now_ms
        )

    def hurry(self) -> None:
        """All of the round is due, or the next one."""
        self.work.once()
        self.now_ms += 8 * 86_400_000

    def until(
        self, is_so: Callable[[ContinuousSummary], object], running: Pipeline
    ) -> ContinuousSummary:
        """Passes until something is so; an idle upstream's checkpoint moves on by itself."""

        def look() -> ContinuousSummary | None:
            self.work.once()
            now = self.work.current_summary()
            return now if is_so(now) else None

        found: ContinuousSummary = running.wait(look, "the verification saw it")
        return found


@contextmanager
def watching(running: Pipeline) -> Iterator[Watcher]:
    with UpstreamCatalog.connect(running.settings) as upstream:
        made = Watcher(running, upstream)
        try:
            yield made
        finally:
            made.work.close()


def known(running: Pipeline) -> int:
    """How many rows of the table are known to differ."""
    return Verifications(RelayLog.open(running.settings.relay.url)).last()[NAME].differences


@pytest.mark.slow
def test_wrong_rows_without_changes_are_found_by_the_round_reported_once_and_known_until_right(
    running: Pipeline,
) -> None:
    running.downstream(f"UPDATE {NAME} SET pad = 'damaged ' WHERE id = 100")
    running.downstream(f"DELETE FROM {NAME} WHERE id = 200")
    running.downstream(f"INSERT INTO {NAME} VALUES (-5, 1, 'surplus')")
    with watching(running) as first:
        first.hurry()
        found = first.until(lambda now: now.open_rows == 3, running)
        assert sorted((one.kind, one.key["id"]) for one in found.differences) == [
            ("changed", 100), ("extra", -5), ("missing", 200),
        ]  # fmt: skip
        first.work.note(1.0)
    assert known(running) == 3
    with watching(running) as second:  # another process knows it, and looks again after a while
        again = second.until(lambda now: now.looked_at_again == 1, running)
        assert (again.open_rows, again.differences) == (3, [])
        running.backfill(NAME)
        second.now_ms += 3_600_000
        second.until(lambda now: not now.open_rows, running)
        second.work.note(1.0)
    assert known(running) == 0


@pytest.mark.slow
def test_a_row_that_was_changed_is_compared_again_without_the_round(running: Pipeline) -> None:
    with watching(running) as watcher:
        watcher.until(lambda now: watcher.work.is_idle(), running)
        ((newest,),) = running.downstream(f"SELECT MAX(id) FROM {NAME}")
        running.traffic(updates=0)
        running.wait(
            lambda: running.downstream(f"SELECT 1 FROM {NAME} WHERE id > {newest + 20}"),
            "rows came",
        )
        running.control.stop()
        running.caught_up()
        running.downstream(f"UPDATE {NAME} SET k = k + 1 WHERE id = {newest + 3}")
        found = watcher.until(lambda now: now.open_rows, running)
        assert [one.key["id"] for one in found.differences] == [newest + 3]
        assert found.keys >= 20
    running.backfill(NAME)


@pytest.mark.slow
def test_nothing_is_reported_while_rows_and_columns_change_all_the_time(running: Pipeline) -> None:
    running.traffic(updates=0.7)
    with watching(running) as watcher:
        for number in range(4):
            running.control.add_column(DATABASE, "load_1", f"c{number}")
            watcher.hurry()
            read = watcher.work.current_summary().rows
            found = watcher.until(lambda now, read=read: now.rows >= read + 3000, running)  # type: ignore[misc]
            assert found.differences == [] and found.open_rows == 0, found
    running.control.stop()


@pytest.mark.slow
def test_since_when_nothing_can_be_read_is_noted_until_rows_are_compared_again(
    running: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Verifications(RelayLog.open(running.settings.relay.url))
    nobody = replace(running.settings, upstream=replace(running.settings.upstream, sql_port=1))
    with UpstreamCatalog.connect(nobody) as upstream:
        blind = ContinuousVerifier(nobody, upstream, threading.Event(), lambda: next(_CLOCKS))
        blind.run(0.5)
        blind.close()
    assert [line.levelname for line in caplog.records if "verification waits" in line.message] == [
        "WARNING"
    ]
    stalled = notes.look()
    assert stalled.stalled_ms and ":1" in stalled.why
    with watching(running) as watcher:
        watcher.hurry()
        watcher.until(lambda now: now.rows >= 1000, running)
    again = notes.look()
    assert (again.stalled_ms, again.why) == (0, "") and again.rows >= stalled.rows


@pytest.mark.slow
def test_what_is_known_of_a_table_that_the_upstream_has_no_longer_is_forgotten(
    running: Pipeline,
) -> None:
    notes = Verifications(RelayLog.open(running.settings.relay.url))
    gone = TableVerified(f"{DATABASE}.gone", 1, 1, 10, 10, 3, "upstream", "verify-1")
    notes.note(VerifiedRun("verify-1", 1, 1, 1.0, "upstream", (gone,)))
    with watching(running) as watcher:
        watcher.hurry()
        watcher.until(lambda now: now.rows, running)
        watcher.work.note(1.0)
    assert NAME in notes.last() and gone.name not in notes.last()
    notes.note(VerifiedRun("verify-1", 1, 2, 1.0, "upstream", (gone,)))
    verified(running, VerifyRequest((NAME,)))
    assert NAME in notes.last() and gone.name not in notes.last()


@pytest.mark.slow
def test_a_table_that_a_job_is_bringing_rows_of_is_left_alone(running: Pipeline) -> None:
    relay = RelayLog.open(running.settings.relay.url)
    with watching(running) as watcher, UpstreamCatalog.connect(running.settings) as upstream:
        tables = {
            table.full_name: table.id for table in upstream.definitions(upstream.now()).tables
        }
        relay.aligned_chunks.begin_repair(TableRepair("job.1", "job", (tables[NAME],)))
        running.downstream(f"DELETE FROM {NAME} WHERE id = 400")
        watcher.hurry()
        watcher.until(lambda now: watcher.work.is_idle(), running)
        assert not watcher.work.suspects()
        relay.aligned_chunks.end_repair("job.1")
        watcher.hurry()
        found = watcher.until(lambda now: now.open_rows, running)
        assert [one.key["id"] for one in found.differences] == [400]
    running.backfill(NAME)


def verified(running: Pipeline, request: VerifyRequest) -> VerifySummary:
    job = create_verify(running.settings, request, "test")
    return run_verify(running.settings, job.id, Runner("test"))


@pytest.mark.slow
def test_a_repair_brings_the_rows_that_differ_and_no_others_and_they_are_the_same_then(
    running: Pipeline, tmp_path: Path
) -> None:
    running.caught_up()
    running.downstream(f"UPDATE {NAME} SET pad = 'damaged ' WHERE id = 500")
    running.downstream(f"DELETE FROM {NAME} WHERE id = 600")
    running.downstream(f"INSERT INTO {NAME} (id, k, pad) VALUES (-6, 1, 'surplus')")
    summary = verified(running, VerifyRequest((f"{DATABASE}.*",)))
    assert [(one.name, one.differences) for one in summary.unequal] == [(NAME, 3)]
    typed = typing(running.settings, tmp_path)("verify", f"{DATABASE}.*", "--repair")
    printed = typed.stdout
    assert (
        printed.startswith("--")
        and f"{NAME}: 3 rows of" in typed.stderr
        and "job verify" in typed.stderr
    )
    assert (
        printed.count("DELETE FROM") == 1
        and printed.count("INSERT INTO") == 1
        and "4 AS rows_expected" in printed
    )
    running.traffic(updates=0)
    job = create_repair(running.settings, summary, "test")
    done = run_backfill(running.settings, job.id, Runner("test"), read=running.read).tables[NAME]
    running.control.stop()
    assert [done[kind] for kind in ("rows", "inserted", "replaced", "deleted", "same")] == [
        2,
        1,
        1,
        1,
        0,
    ]
    after = verified(running, recheck_request(summary))
    assert after.equal and [one.name for one in after.tables] == [NAME]
    assert list(repair_sql(running.settings, after)) == []
    with pytest.raises(VerifyError, match="nothing to repair"):
        create_repair(running.settings, after, "test")


@pytest.mark.slow
def test_a_repair_without_a_tidb_names_the_other_roads(running: Pipeline) -> None:
    running.caught_up()
    running.downstream(f"DELETE FROM {NAME} WHERE id = 700")
    summary = verified(running, VerifyRequest((NAME,)))
    without = replace(running.settings, upstream=replace(running.settings.upstream, sql_host=""))
    with pytest.raises(
        VerifyError, match=r"sql-host is missing.*verify --repair.*sluice restore --until"
    ):
        create_repair(without, summary, "test")
    running.backfill(NAME)


@pytest.mark.slow
def test_how_far_it_is_and_what_differs_is_printed_meanwhile_beside_the_result(
    running: Pipeline, tmp_path: Path
) -> None:
    running.caught_up()
    done = typing(running.settings, tmp_path)("verify", "--continuous", "--for", "1", "--json")
    differ = json.loads(done.stdout)["open_rows"]  # one that a test before left
    found = counted(differ, "row differs", "rows differ") if differ else "no row is known to differ"
    assert f"{found}: " in done.stderr


@pytest.mark.slow
def test_the_newest_process_does_it_and_the_one_before_ends(running: Pipeline) -> None:
    with watching(running) as first, watching(running), pytest.raises(ClaimLostError):
        first.work.run(1.0)
