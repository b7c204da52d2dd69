"""Partition DDL that TiDB takes and other servers don't, on a real server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Table
from tests.etl.downstream.ddl.test_partition_literals import by_columns, partitions
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, partitioned, table


def listed(*names_and_values: tuple[int, str, str]) -> dict[str, Any]:
    """LIST partitions of column n: id, name and value."""
    definitions = [
        {"id": i, "name": {"O": name, "L": name}, "in_values": [[value]]}
        for i, name, value in names_and_values
    ]
    return {"type": 3, "expr": "`n`", "enable": True, "definitions": definitions}


def test_list_partitions_that_do_not_follow_each_other_are_reorganized(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    info = listed((101, "p0", "0"), (102, "p1", "1"), (103, "p2", "2"), (104, "p3", "3"))
    made = story.create(table(10, "t", "n int", "v varchar(20)", partition=info), "")
    story.insert(made, *({"n": n, "v": "x"} for n in range(4)))
    after = replace(
        made,
        partition=listed((202, "p3", "3"), (201, "p0", "0"), (102, "p1", "1"), (103, "p2", "2")),
    )
    story.statement(Action.REORGANIZE_PARTITION, "ALTER TABLE `t` REORGANIZE PARTITION", after)
    assert story.apply().warnings == []
    assert partitions(mariadb) == ["3", "0", "1", "2"]
    assert sorted(story.rows("t")) == [(n, "x") for n in range(4)]


def test_the_last_range_may_end_earlier_than_before(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    made = story.create(
        table(
            10, "t", "n int", partition=partitioned(1, "`n`", (101, "p0", "5"), (102, "p1", "9"))
        ),
        "",
    )
    story.insert(made, {"n": 1}, {"n": 6})
    after = replace(made, partition=partitioned(1, "`n`", (101, "p0", "5"), (202, "p1", "7")))
    story.statement(Action.REORGANIZE_PARTITION, "ALTER TABLE `t` REORGANIZE PARTITION", after)
    assert story.apply().warnings == []
    assert partitions(mariadb) == ["5", "7"]
    assert sorted(story.rows("t")) == [(1,), (6,)]


def exchanged(story: Story, partitioned_table: Table, at: int, ordinary: Table) -> None:
    """EXCHANGE PARTITION: the partition and the table take each other's ids."""
    info = partitioned_table.partition or {}
    given = info["definitions"][at]["id"]
    definitions = [
        d | {"id": ordinary.id} if n == at else d for n, d in enumerate(info["definitions"])
    ]
    story.statement(
        Action.EXCHANGE_PARTITION,
        "ALTER TABLE `t` EXCHANGE PARTITION",
        replace(partitioned_table, partition={**info, "definitions": definitions}),
        replace(ordinary, id=given),
        ordinary.id,
    )


def test_a_partition_is_exchanged_of_a_table_that_is_in_one_piece_downstream(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    info = by_columns(3, "n", {"in_values": [["1"], ["2"]]}, {"in_values": [["3"]]})
    # No server takes partitions beside a unique key that lacks their column.
    columns = ("id int", "n int")
    made = story.create(table(10, "t", *columns, primary="id", partition=info), "")
    beside = story.create(table(11, "x", *columns, primary="id"), "")
    story.insert(made, {"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 3, "n": 3})
    story.insert(beside, {"id": 1, "n": 2}, {"id": 9, "n": 1})
    exchanged(story, made, 0, beside)
    story.apply()
    assert partitions(mariadb) == []
    assert sorted(story.rows("t")) == [(1, 2), (3, 3), (9, 1)]
    assert sorted(story.rows("x")) == [(1, 1), (2, 2)]


def test_a_rejected_change_of_partitions_leaves_the_columns_alone(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    info = partitioned(1, "`n`", (101, "p0", "5"))
    made = story.create(table(10, "t", "n int", "v varchar(20)", partition=info), "")
    # A bound that is no expression of this server's.
    after = replace(
        made, partition=partitioned(1, "`n`", (101, "p0", "5"), (102, "p1", "TIDB_SHARD(9)"))
    )
    story.statement(Action.ADD_PARTITION, "ALTER TABLE `t` ADD PARTITION", after)
    warnings = " ".join(story.apply().warnings)
    assert "created without its partitions" in warnings
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW COLUMNS FROM d.t LIKE 'v'")
        assert cursor.fetchone()[1] == "varchar(20)"
