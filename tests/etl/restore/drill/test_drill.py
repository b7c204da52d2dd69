"""Restoring is tried: what a drill does, what it leaves, and what it says when it fails."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import Prepare
from sluice.etl.history.retain import archive_status
from sluice.etl.restore.drill import (
    DrillError,
    DrillFailedError,
    RestoreTestRequest,
    cancel_drill,
    create_or_resume,
    is_due,
    run_drill,
)
from sluice.etl.restore.drill.pick_tables import pick_tables
from sluice.etl.settings import Archive, Settings
from sluice.etl.tasks.drill import drill
from sluice.relay import RelayLog
from sluice.relay.jobs import CANCEL, CANCELLED, DONE, FAILED, Job, Jobs, Runner
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.restore.restoring import Here, archive_of, settings_of

MID = 470614793860415502
SYSTEM = {"mysql", "information_schema", "performance_schema", "sys"}


@pytest.fixture
def settings(mariadb: MariaDBServer, tmp_path: Path) -> Settings:
    """A pipeline whose archive holds all of the recording `shop`, from the creation of each table
    on.
    """
    return settings_of(mariadb, archive_of("shop", tmp_path, 1_000))


def databases(server: MariaDBServer) -> set[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        return {str(name) for (name,) in cursor.fetchall()} - SYSTEM


def made(settings: Settings, wish: RestoreTestRequest | None = None) -> Job:
    return create_or_resume(settings, wish or RestoreTestRequest(tables=2), "test")


class Failing(Here):
    @contextmanager
    def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> Iterator[Prepare]:
        def fail(_: Any) -> Any:
            raise RuntimeError("the worker broke")

        yield fail


def test_a_drill_restores_verifies_drops_and_keeps_how_long_it_took(
    settings: Settings, mariadb: MariaDBServer
) -> None:
    before = databases(mariadb)
    now = time.time_ns() // 1_000_000
    assert not is_due(settings, now), "on its first day a pipeline has other things to do"
    assert is_due(settings, now + 86_400_000)
    job = made(settings, RestoreTestRequest(tables=50, ts=MID))
    done = run_drill(settings, job, Runner("test"), ways=Here())
    assert (done.state, done.tables, done.ts) == (DONE, len(done.names), MID)
    assert done.seconds > 0 and done.changes > 0
    assert databases(mariadb) == before
    told = archive_status(settings).drill
    assert told is not None and told["result"]["seconds"] == done.seconds
    assert not is_due(settings)
    assert is_due(settings, now_ms=job.spec.made_ms + 7 * 86_400_000)


@pytest.mark.slow
def test_a_drill_that_fails_says_so_and_the_next_one_removes_what_it_left(
    settings: Settings, mariadb: MariaDBServer
) -> None:
    before = databases(mariadb)
    job = made(settings)
    with pytest.raises(DrillFailedError, match="the worker broke"):
        run_drill(settings, job, Runner("test"), ways=Failing())
    told = archive_status(settings).drill
    assert told is not None and (told["state"], "the worker broke" in told["message"]) == (
        FAILED,
        True,
    )
    again = made(settings)
    assert again.id != job.id
    assert databases(mariadb) == before
    assert run_drill(settings, again, Runner("test"), ways=Here()).state == DONE
    assert databases(mariadb) == before


@pytest.mark.slow
def test_a_drill_that_was_killed_goes_on_with_the_same_tables_and_moment(
    settings: Settings, mariadb: MariaDBServer
) -> None:
    class KilledError(BaseException):
        pass

    class Killed(Here):
        @contextmanager
        def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> Iterator[Prepare]:
            raise KilledError
            yield

    before = databases(mariadb)
    job = made(settings)
    with pytest.raises(KilledError):
        run_drill(settings, job, Runner("test"), ways=Killed())
    assert databases(mariadb) > before
    assert made(settings).id == job.id
    plan = job.plan()
    done = run_drill(settings, job, Runner("test"), ways=Here())
    assert plan == {"ts": done.ts, "tables": list(done.names)}
    assert databases(mariadb) == before


def test_a_drill_that_is_given_up_leaves_nothing(
    settings: Settings, mariadb: MariaDBServer
) -> None:
    before = databases(mariadb)
    job = made(settings)
    with pytest.raises(DrillFailedError):
        run_drill(settings, job, Runner("test"), ways=Failing())
    assert cancel_drill(settings, job, Runner("test")).state == CANCELLED
    assert databases(mariadb) == before
    jobs = Jobs(RelayLog.open(settings.relay.url).storage)
    assert jobs.unfinished() == []


@pytest.mark.slow
def test_an_order_to_cancel_reaches_the_restore_that_runs(
    settings: Settings, mariadb: MariaDBServer
) -> None:
    before = databases(mariadb)
    job = made(settings)

    class Ordering(Here):
        @contextmanager
        def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> Iterator[Prepare]:
            with super().steps(own, url, without_rows) as prepare:

                def ordered(windows: Any) -> Any:
                    job.order(CANCEL, "test")
                    jobs = Jobs(RelayLog.open(settings.relay.url).storage)
                    restore = next(one for one in jobs.unfinished() if one.spec.kind == "restore")
                    restore.order(CANCEL, "test")
                    return prepare(windows)

                yield ordered

    assert run_drill(settings, job, Runner("test"), ways=Ordering()).state == CANCELLED
    assert job.entry().state == CANCELLED
    assert databases(mariadb) == before


def test_moment_and_tables_are_chosen_among_what_can_be_restored(settings: Settings) -> None:
    status = archive_status(settings)
    chosen = [pick_tables(settings, None, 3, 10**9, random.Random(seed)) for seed in range(8)]
    assert len({one.ts for one in chosen}) == 8
    for one in chosen:
        assert status.whole_from_ts <= one.ts <= status.hi
        ranges = {table.name: table for table in status.tables}
        assert all(ranges[name].from_ts <= one.ts for name in one.tables)


def test_by_the_clock_nothing_is_tried_before_it_is_due(settings: Settings, tmp_path: Path) -> None:
    never = replace(settings, archive=Archive(drills_every=""))
    assert drill(never, {}, run_id="a run", scheduled=True) is None
    empty = replace(settings, relay=replace(settings.relay, url=f"file://{tmp_path}/empty"))
    assert drill(empty, {}, run_id="a run", scheduled=True) is None
    assert Jobs(RelayLog.open(empty.relay.url).storage).list() == []
    with pytest.raises(DrillError, match="nothing can be restored"):
        drill(empty, {"tables": 2}, run_id="a run", scheduled=False)
