"""Backfills beside a pipeline with routes and filters, and a DDL in the middle of a job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.etl.copy.backfill import BackfillRequest, create_backfill, plan_backfill, run_backfill
from sluice.etl.copy.backfill.reader import ReadRequest, ReadResult
from sluice.etl.settings.rules import parse_filter, parse_routes
from sluice.relay.jobs import Runner
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline
from tests.etl.mariadb_fixture import MariaDBServer

ROUTE = {
    "schema-pattern": DATABASE,
    "table-pattern": "load_1",
    "target-schema": "other",
    "target-table": "flat",
}
FILTER = {"ignore-table": [{"db-name": DATABASE, "tbl-name": "load_2"}]}
ROUTED, KEPT, LEFT_OUT = f"{DATABASE}.load_1", f"{DATABASE}.txn", f"{DATABASE}.load_2"
TRAFFIC = {"tables": 2, "rows": 5}


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    rules = {"routes": parse_routes([ROUTE]), "filters": parse_filter(FILTER)[0]}
    with pipeline(
        mariadb_server, spark_remote, tmp_path_factory.mktemp("by_rules"), **rules
    ) as made:
        made.fill(transactions=60, rows=60, tables=2)
        traffic(made)
        yield made
        made.control.stop()


def traffic(running: Pipeline) -> None:
    """New rows: a damaged row is not updated before it is mended."""
    running.control.workload({"rate": 20, "transactions": None, "updates": 0, **TRAFFIC})


def check(running: Pipeline, **targets: str) -> None:
    """Tables under these names downstream are what they were upstream at the checkpoint."""
    running.caught_up()
    with running.snapshot() as (ts, select):
        for name, target in targets.items():
            wanted = running.upstream(f"SELECT * FROM {DATABASE}.{name} ORDER BY id", ts)
            assert select(f"SELECT * FROM {target} ORDER BY id") == wanted, name


@pytest.mark.slow
def test_a_routed_table_is_made_whole_under_its_name_downstream_and_only_it(
    running: Pipeline,
) -> None:
    for target, column in (("other.flat", "pad"), (KEPT, "note")):
        running.downstream(f"DELETE FROM {target} WHERE id < 300 AND id % 7 = 0")
        running.downstream(
            f"UPDATE {target} SET {column} = 'damaged' WHERE id < 300 AND id % 11 = 0"
        )
    running.downstream("INSERT INTO other.flat VALUES (-5, 1, 'extra')")
    damaged = running.downstream(f"SELECT COUNT(*) FROM {KEPT} WHERE note = 'damaged'")
    found = running.backfill(ROUTED).tables[ROUTED]
    assert found["deleted"] == 1 and found["inserted"] and found["replaced"]
    check(running, load_1="other.flat")
    assert damaged != [(0,)]
    assert running.downstream(f"SELECT COUNT(*) FROM {KEPT} WHERE note = 'damaged'") == damaged
    assert running.downstream(f"SHOW TABLES FROM {DATABASE}") == [("txn",)]


@pytest.mark.slow
def test_all_tables_but_those_that_filters_leave_out_are_made_whole(running: Pipeline) -> None:
    running.downstream(
        "UPDATE other.flat SET pad = 'damaged' WHERE id = 14 OR id = 15 OR id = 16 OR id = 17"
    )
    running.downstream(f"DELETE FROM {KEPT} WHERE id = 5")
    assert set(running.backfill(f"{DATABASE}.*").tables) == {ROUTED, KEPT}
    check(running, load_1="other.flat", txn=KEPT)
    assert running.downstream(f"SHOW TABLES FROM {DATABASE}") == [("txn",)]
    (problem,) = plan_backfill(running.settings, BackfillRequest((LEFT_OUT,))).problems
    assert LEFT_OUT in problem and "ignore-table" in problem


@pytest.mark.slow
def test_a_column_that_is_added_in_the_middle_of_a_job_is_in_every_chunk_read_afterwards(
    running: Pipeline,
) -> None:
    running.downstream("UPDATE other.flat SET pad = 'damaged' WHERE id < 300 AND id % 11 = 0")
    seen: list[tuple[str, ...]] = []

    def read(order: ReadRequest) -> ReadResult:
        seen.append(tuple(column.name for column in order.table.columns))
        if len(seen) == 2:
            running.control.add_column(DATABASE, "load_1", "later")
        return running.read(order)

    # A chunk is appointed while the one before is read: the fourth comes after the DDL for certain.
    job = create_backfill(running.settings, BackfillRequest((ROUTED,), rows_per_second=400), "test")
    summary = run_backfill(running.settings, job.id, Runner("test"), read=read)
    assert summary.state == "done" and summary.tables[ROUTED]["replaced"]
    before = ("id", "k", "pad")
    assert len(seen) > 3 and seen[:2] == [before, before] and seen[-1] == (*before, "later")
    check(running, load_1="other.flat")
    running.downstream("UPDATE other.flat SET later = 7 WHERE id % 11 = 0 AND id < 300")
    assert running.backfill(ROUTED).total("replaced")
    check(running, load_1="other.flat")
