"""Partitions whose bounds TiDB spells in its own ways, made and changed on a real server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table


def by_columns(kind: int, column: str, *definitions: dict[str, Any]) -> dict[str, Any]:
    """TiDB's PartitionInfo of a table partitioned by one column."""
    found = [
        {"id": 100 + n, "name": {"O": f"p{n}", "L": f"p{n}"}, **d}
        for n, d in enumerate(definitions)
    ]
    columns = [{"O": column, "L": column}]
    return {
        "type": kind,
        "expr": "",
        "columns": columns,
        "enable": True,
        "definitions": found,
        "num": len(found),
    }


def partitions(server: MariaDBServer) -> list[Any]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT PARTITION_DESCRIPTION FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA ="
            " 'd' AND TABLE_NAME = 't' AND PARTITION_NAME IS NOT NULL ORDER BY"
            " PARTITION_ORDINAL_POSITION"
        )
        return [text for (text,) in cursor.fetchall()]


def truncated(info: dict[str, Any], at: int) -> dict[str, Any]:
    """The partitions after TRUNCATE PARTITION of one."""
    found = [d | {"id": 200} if n == at else d for n, d in enumerate(info["definitions"])]
    return {**info, "definitions": found}


@pytest.mark.parametrize("bound", ['"2022-01-01"', "'2022-01-01'"])
def test_a_bound_is_the_date_whatever_its_quotes(
    mariadb: MariaDBServer, tmp_path: Path, bound: str
) -> None:
    story = Story(mariadb, tmp_path)
    info = by_columns(1, "d", {"less_than": [bound]}, {"less_than": ["MAXVALUE"]})
    made = story.create(table(10, "t", "d date", "n int", partition=info), "")
    story.insert(made, {"d": "2021-05-05", "n": 1}, {"d": "2022-05-05", "n": 2})
    after = replace(made, partition=truncated(info, 0))
    story.statement(23, "ALTER TABLE `t` TRUNCATE PARTITION `p0`", after)
    story.insert(after, {"d": "2021-06-06", "n": 3})  # within ten seconds of the statement
    story.apply()
    assert [n for _, n in story.rows("t")] == [3, 2]
    assert partitions(mariadb) == ["'2022-01-01'", "MAXVALUE"]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ([r"'a\\b'", r"'it''s'"], [r"a\b", "it's"]),
        (['"a\\\\b"', '"it\'s \\"x\\""'], [r"a\b", 'it\'s "x"']),
        ([r"'\\'", "'é'"], ["\\", "é"]),
    ],
)
def test_listed_texts_are_what_they_are_upstream(
    mariadb: MariaDBServer, tmp_path: Path, texts: list[str], values: list[str]
) -> None:
    story = Story(mariadb, tmp_path)
    info = by_columns(3, "s", {"in_values": [[texts[0]]]}, {"in_values": [[texts[1]], ["NULL"]]})
    made = story.create(table(10, "t", "s varchar(20)", "n int", partition=info), "")
    story.insert(made, {"s": values[0], "n": 1}, {"s": values[1], "n": 2}, {"s": None, "n": 3})
    more = {"id": 150, "name": {"O": "more", "L": "more"}, "in_values": [["'y'"]]}
    wider = replace(made, partition={**info, "definitions": [*info["definitions"], more]})
    story.statement(19, "ALTER TABLE `t` ADD PARTITION", wider)
    emptied = replace(wider, partition=truncated(wider.partition or {}, 0))
    story.statement(23, "ALTER TABLE `t` TRUNCATE PARTITION `p0`", emptied)
    summary = story.apply()
    assert len(partitions(mariadb)) == 3, summary.warnings
    assert sorted(n for _, n in story.rows("t")) == [2, 3]


def takes_default_partitions(server: MariaDBServer) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        try:
            cursor.execute(
                "CREATE TABLE d.probe (n int) PARTITION BY LIST (n) (PARTITION p DEFAULT)"
            )
        except pymysql.err.MySQLError:
            return False
        return True


@pytest.mark.parametrize("keeps", [True, False], ids=["partitions", "one piece"])
def test_the_rows_of_a_default_partition_go_with_it(
    mariadb: MariaDBServer, tmp_path: Path, keeps: bool
) -> None:
    story = Story(mariadb, tmp_path)
    info = by_columns(
        3,
        "n",
        {"in_values": [["1"], ["NULL"]]},
        {"in_values": [["2"]]},
        {"in_values": [["DEFAULT"]]},
    )
    # No server takes partitions beside a unique key that lacks their column.
    made = story.create(
        table(10, "t", "id int", "n int", primary="" if keeps else "id", partition=info), ""
    )
    story.insert(made, *({"id": n, "n": value} for n, value in enumerate((1, None, 2, 3, 4))))
    story.statement(
        23, "ALTER TABLE `t` TRUNCATE PARTITION `p2`", replace(made, partition=truncated(info, 2))
    )
    story.apply()
    assert bool(partitions(mariadb)) == (keeps and takes_default_partitions(mariadb))
    assert story.rows("t") == [(0, 1), (1, None), (2, 2)]
