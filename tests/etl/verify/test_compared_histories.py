"""A table with every version of its rows: copied, looked at all the time, verified and repaired."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.etl.changes.planning import prepare
from sluice.etl.copy.backfill import run_backfill
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify import VerifyRequest, VerifySummary, create_verify, run_verify
from sluice.etl.verify.live_rows import open_live_rows
from sluice.etl.verify.reapply import ReplayRequest, create_or_resume, run_reapply
from sluice.etl.verify.reapply.repair_run import latest_rows_options
from sluice.etl.verify.repair import create_repair, repair_sql
from sluice.relay.jobs import Runner
from sluice.tidb.schema import Schema
from tests.etl.apply.soft_deleted import time_of
from tests.etl.apply.versions import RULE
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline
from tests.etl.copy.copying import CLUSTER
from tests.etl.copy.given_rows import NOW, serving_all
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.verify.replicas import Replica
from tests.etl.verify.test_compared_added_columns import differing, run

PEOPLE = table(21, "people", "id int", "n int", primary="id", unique=("n",))
TABLE = f"{DATABASE}.load_1"


@contextlib.contextmanager
def replica(server: MariaDBServer, folder: Path) -> Iterator[Replica]:
    schema = Schema(PEOPLE.schema_id, "d", "utf8mb4", "utf8mb4_bin")
    filters = parse_filter({"columns": [{"tables": ["d.people"], **RULE}]})[0]
    known = SourceSchema(NOW - 1, 5, (schema,), (PEOPLE,))
    held = {PEOPLE.id: [[n, n] for n in range(60)]}
    with serving_all([PEOPLE], held, region_rows=20) as address:
        made = Replica(address, known, server, folder, filters)
        made.copy()
        yield made


@pytest.mark.slow
def test_a_copy_opens_versions_at_its_time_and_those_that_ended_are_not_compared(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path) as made:

        class Upstream:
            address = made.address

            def definitions(self, ts: int) -> SourceSchema:
                return made.known

        def seen_all_the_time() -> int:
            with open_live_rows(made.settings, CLUSTER, Upstream(), 1.0) as live:
                return live.compare(live.tables[PEOPLE.id], "id < 200").apart.count

        ((rows, ended),) = run(mariadb, "SELECT COUNT(*), COUNT(until) FROM d.people")
        assert (rows, ended, differing(made), seen_all_the_time()) == (60, 0, 0, 0)
        ((since, ts),) = run(mariadb, "SELECT DISTINCT since, made_by FROM d.people")
        assert since == time_of(ts) and ts in (NOW, NOW - 1)
        run(mariadb, "INSERT INTO d.people VALUES (7, 7, '2020-01-01', '2020-01-02', 5)")
        assert (differing(made), seen_all_the_time()) == (0, 0)
        run(mariadb, "UPDATE d.people SET until = '2020-01-01' WHERE id = 8")
        run(mariadb, "INSERT INTO d.people VALUES (99, 7, '2020-01-01', NULL, 5)")
        assert (differing(made), seen_all_the_time()) == (2, 2)


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    filters = parse_filter({"columns": [{"tables": [TABLE], **RULE}]})[0]
    folder = tmp_path_factory.mktemp("histories")
    with pipeline(mariadb_server, spark_remote, folder, filters=filters) as made:
        made.fill(transactions=20, rows=30, tables=1)
        made.control.workload(
            {"rate": 20, "transactions": None, "rows": 5, "tables": 1, "updates": 0}
        )
        yield made
        made.control.stop()


def damage(running: Pipeline) -> None:
    running.caught_up()
    running.downstream(f"DELETE FROM {TABLE} WHERE id % 7 = 0 AND id < 300 AND until IS NULL")
    running.downstream(
        f"UPDATE {TABLE} SET until = since WHERE id % 11 = 0 AND id < 300 AND until IS NULL"
    )
    running.downstream(
        f"UPDATE {TABLE} SET pad = 'damaged' WHERE id % 13 = 0 AND id < 300 AND until IS NULL"
    )
    running.downstream(
        f"REPLACE INTO {TABLE} (id, k, pad, since, made_by) VALUES (-1, 1, '', '2020-01-01', 5)"
    )


def verified(running: Pipeline) -> VerifySummary:
    job = create_verify(running.settings, VerifyRequest((TABLE,)), "test")
    return run_verify(running.settings, job.id, Runner("test"))


def check(running: Pipeline) -> None:
    running.caught_up()
    with running.snapshot() as (ts, select):
        wanted = running.upstream(f"SELECT * FROM {TABLE} ORDER BY id", ts)
        found = select(f"SELECT * FROM {TABLE} WHERE until IS NULL ORDER BY id")
        assert len(wanted) > 300 and [row[:-3] for row in found] == wanted
        # each but the last version of a row ended before or when the next began
        overlaps = select(
            f"SELECT COUNT(*) FROM {TABLE} a JOIN {TABLE} b ON a.id = b.id AND a.made_by <"
            " b.made_by WHERE COALESCE(a.until, '9999-01-01') > b.since"
        )
        assert overlaps == [(0,)]


@pytest.mark.slow
def test_a_repair_opens_what_is_missing_and_ends_what_is_not_upstream(running: Pipeline) -> None:
    damage(running)
    summary = verified(running)
    (one,) = summary.unequal
    assert one.differences > 50
    script = b"\n".join(repair_sql(running.settings, summary))
    assert b"SET `until` = '20" in script and b"`until` IS NULL AND (" in script
    job = create_repair(running.settings, summary, "test")
    found = run_backfill(running.settings, job.id, Runner("test"), read=running.read)
    counts = found.tables[TABLE]
    assert counts["inserted"] and counts["replaced"] and counts["deleted"] == 1
    check(running)
    ((ended,),) = running.downstream(f"SELECT until FROM {TABLE} WHERE id = -1")
    assert abs(ended - time_of(found_at(running))) < timedelta(days=1)
    assert verified(running).equal


def found_at(running: Pipeline) -> int:
    last = running.settings.open_relay().last()
    assert last is not None
    return last.hi


@pytest.mark.slow
def test_rows_come_from_the_relay_log_as_versions_that_begin(running: Pipeline) -> None:
    damage(running)
    relay = running.settings.open_relay()
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    request = ReplayRequest(first.lo, last.hi, tables=(TABLE,))
    options = latest_rows_options(running.settings, request)
    done = run_reapply(
        running.settings,
        create_or_resume(running.settings, request, "test"),
        Runner("test"),
        prepare=lambda windows: prepare(running.settings.relay.url, windows, options),
    )
    assert done.is_done and done.repaired[TABLE]["inserted"] and done.repaired[TABLE]["replaced"]
    running.downstream(f"DELETE FROM {TABLE} WHERE id = -1")
    check(running)
