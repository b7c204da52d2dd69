"""What of a DDL job rows show before and after its binlog."""

from __future__ import annotations

from typing import Any

from sluice.tidb.ddl_schema_versions import loosened_tables, relaxed_indexes, versions_of
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Column, Index, Table

DIFFS: dict[int, dict[str, Any]] = {
    180: {"type": 20, "table_id": 7},  # the partition dropped before
    181: {"type": 20, "table_id": 7},
    182: {"type": 7, "table_id": 8},
    183: {"type": 20, "table_id": 7},
    184: {"type": 3, "table_id": 9},  # other jobs run at the same time
    185: {"type": 20, "table_id": 7},
    186: {"type": 20, "table_id": 7},
    187: {"type": 8, "table_id": 9},
}


def job(kind: int, version: int, table_id: int = 7) -> DdlHistoryJob:
    return DdlHistoryJob.from_json(
        {
            "id": 1,
            "type": kind,
            "state": 6,
            "table_id": table_id,
            "binlog": {"SchemaVersion": version},
        }
    )


def test_the_steps_of_a_job_are_told_from_those_of_others_and_of_the_job_before() -> None:
    assert versions_of(job(20, 186), 181, DIFFS.get) == [183, 185, 186]
    assert versions_of(job(23, 187), 186, DIFFS.get) == [187]
    assert versions_of(job(3, 184, 9), 0, DIFFS.get) == [184]


def test_only_jobs_that_may_give_up_a_key_loosen_a_table() -> None:
    assert loosened_tables(range(180, 200), DIFFS.get) == {7: True, 9: False}
    assert loosened_tables([182, 184], DIFFS.get) == {}


def test_an_index_that_rows_are_still_written_to_is_enforced() -> None:
    table = Table(
        9,
        1,
        "d",
        "t",
        (Column(1, "a", 0, 3),),
        tuple(Index(n, f"i{n}", (("a", 0, -1),), unique=n != 6) for n in range(1, 7)),
    )
    states = {
        1: 5,
        2: 2,
        3: 1,
        4: 4,
        6: 1,
    }  # public, write only, delete only, delete reorganisation; 5 is gone, 6 was never unique
    info = {"index_info": [{"id": i, "state": state} for i, state in states.items()]}
    assert relaxed_indexes(table, info) == [3, 4, 5]
    assert relaxed_indexes(table, None) == []
