"""Backfills beside a pipeline that runs, with live traffic: a damaged table is made whole, and nobody waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.etl.backfill.running import DATABASE, Pipeline, pipeline
from tests.etl.mariadb_fixture import MariaDBServer


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline(mariadb_server, spark_remote, tmp_path_factory.mktemp("running")) as made:
        made.control.workload({"rate": "max", "transactions": 60, "rows": 100})
        made.wait(lambda: len(made.control.numbered_commits()) == 60, "the tables are filled")
        made.control.stop()
        made.caught_up()
        made.control.workload({"rate": 20, "transactions": None, "rows": 5})
        yield made
        made.control.stop()


def damage(running: Pipeline) -> None:
    running.downstream(f"DELETE FROM {DATABASE}.load_1 WHERE id % 7 = 0 AND id < 3000")
    running.downstream(f"UPDATE {DATABASE}.load_1 SET pad = 'damaged' WHERE id % 11 = 0 AND id < 3000")
    running.downstream(f"INSERT INTO {DATABASE}.load_1 VALUES (-5, 1, 'extra'), (900000000, 1, 'extra')")


def test_a_damaged_table_is_whole_again_while_it_changes(running: Pipeline) -> None:
    damage(running)
    summary = running.backfill(f"{DATABASE}.load_1")
    found = summary.tables[f"{DATABASE}.load_1"]
    assert summary.state == "done" and found["deleted"] == 2 and found["inserted"] and found["replaced"]
    assert found["rows"] == found["same"] + found["inserted"] + found["replaced"]
    running.compared()


def test_comparing_tells_what_differs_and_writes_nothing(running: Pipeline) -> None:
    name = f"{DATABASE}.txn"
    assert running.backfill(name, mode="compare").differing == 0
    running.downstream(f"UPDATE {name} SET note = 'damaged' WHERE id = 7")
    running.downstream(f"DELETE FROM {name} WHERE id = 8")
    running.downstream(f"INSERT INTO {name} VALUES (-1, 'extra')")
    found = running.backfill(name, mode="compare")
    assert found.differing == 3
    assert set(found.tables[name]["examples"]) == {"differs: id=7", "missing: id=8", "not upstream: id=-1"}
    assert running.downstream(f"SELECT note FROM {name} WHERE id = 7") == [("damaged",)]
    assert running.backfill(name).differing == 3
    running.compared()


def test_missing_rows_come_and_others_stay_as_they_are(running: Pipeline) -> None:
    name = f"{DATABASE}.txn"
    running.downstream(f"UPDATE {name} SET note = 'kept' WHERE id = 9")
    running.downstream(f"DELETE FROM {name} WHERE id BETWEEN 10 AND 14")
    found = running.backfill(name, mode="missing")
    assert (found.total("inserted"), found.total("kept"), found.total("replaced")) == (5, 1, 0)
    assert running.downstream(f"SELECT note FROM {name} WHERE id = 9") == [("kept",)]
    assert running.backfill(name).total("replaced") == 1
    running.compared()


def test_only_the_rows_asked_for_are_copied(running: Pipeline) -> None:
    name = f"{DATABASE}.load_1"
    running.downstream(f"UPDATE {name} SET pad = 'damaged' WHERE id IN (100, 200, 300)")
    running.downstream(f"DELETE FROM {name} WHERE id IN (101, 201, 301)")
    assert running.backfill(name, from_key="100", to_key="200").total("inserted") == 1
    assert running.downstream(f"SELECT id FROM {name} WHERE pad = 'damaged' ORDER BY id") == [(200,), (300,)]
    assert running.backfill(name, where="id IN (200, 201) OR id < -3").differing == 2
    assert running.downstream(f"SELECT id FROM {name} WHERE pad = 'damaged'") == [(300,)]
    running.backfill(name, rows_per_second=100_000)
    running.compared()
