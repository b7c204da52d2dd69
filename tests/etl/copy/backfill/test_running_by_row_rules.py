"""A backfill of a table of which a row rule selects some rows, beside traffic across the border."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.etl.copy.backfill import BackfillRequest, plan_backfill
from sluice.etl.settings.rules import parse_filter
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline
from tests.etl.mariadb_fixture import MariaDBServer

TABLE = f"{DATABASE}.load_1"
WHERE = "k < 1 AND pad <> ''"
RULES = {"rows": [{"tables": [f"{DATABASE}.LOAD_*"], "where": WHERE}]}


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    filters = parse_filter(RULES)[0]
    folder = tmp_path_factory.mktemp("by_row_rules")
    with pipeline(mariadb_server, spark_remote, folder, filters=filters) as made:
        made.fill(transactions=10, rows=20, tables=1)
        yield made
        made.control.stop()


def check(running: Pipeline) -> int:
    """The downstream has the upstream's rows that TiDB's SQL finds; how many."""
    running.caught_up()
    with running.snapshot() as (ts, select):
        wanted = running.upstream(f"SELECT * FROM {TABLE} WHERE {WHERE} ORDER BY id", ts)
        assert select(f"SELECT * FROM {TABLE} ORDER BY id") == wanted
    return len(wanted)


def write(running: Pipeline, transactions: int, updates: float) -> None:
    goal = len(running.control.numbered_commits()) + transactions
    running.control.workload(
        {"rate": "max", "transactions": transactions, "rows": 20, "tables": 1, "updates": updates}
    )
    running.wait(lambda: len(running.control.numbered_commits()) >= goal, "rows are written")
    running.control.stop()


@pytest.mark.slow
def test_a_backfill_brings_the_selected_rows_and_removes_others(running: Pipeline) -> None:
    write(running, 20, 0.6)
    selected = check(running)
    ((all_of_them,),) = running.upstream(f"SELECT COUNT(*) FROM {TABLE}")
    assert 0 < selected < all_of_them
    running.downstream(f"DELETE FROM {TABLE} WHERE id % 7 = 0")
    running.downstream(f"INSERT INTO {TABLE} VALUES (-5, 9, 'extra')")
    plan = plan_backfill(running.settings, BackfillRequest((TABLE,)))
    assert any(WHERE in note for note in plan.notes)
    found = running.backfill(TABLE).tables[TABLE]
    assert found["deleted"] == 1 and found["inserted"]
    assert check(running) == selected
    write(running, 20, 0.9)
    check(running)
