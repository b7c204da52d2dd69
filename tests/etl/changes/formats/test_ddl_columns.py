"""Which column is which across a DDL: TiDB gives a column whose rows it rewrites a new id, also
when it gets a new name.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.changes.formats.ddl_columns import changed_columns
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def described(kind: int, query: str, before: Table, after: Table) -> DdlJob:
    return DdlJob(1, type=kind, query=query, before={10: before}, effect=DdlEffect({}, {10: after}))


def paired(kind: int, query: str, before: Table, after: Table) -> set[tuple[str, str]]:
    return {
        (change.old.name, change.new.name)
        for change in changed_columns(described(kind, query, before, after))
    }


BEFORE = table(10, "t", "id int", "a varchar(30)", "B int", primary="id")


@pytest.mark.parametrize(
    ("kind", "query", "columns", "want"),
    [
        (12, "ALTER TABLE `t` CHANGE COLUMN `a` `x` DATETIME", ["id int", (7, "x datetime"), (3, "B int")], [("id", "id"), ("a", "x"), ("B", "B")]),  # noqa: E501
        (12, "ALTER TABLE `t` MODIFY COLUMN `a` DATETIME FIRST", [(7, "a datetime"), (1, "id int"), (3, "B int")], [("a", "a"), ("id", "id"), ("B", "B")]),  # noqa: E501
        (12, "whatever \" it ' says", [(3, "B int"), (7, "x datetime"), (1, "id int")], [("B", "B"), ("a", "x"), ("id", "id")]),  # noqa: E501
        (61, "ALTER TABLE `t` CHANGE COLUMN `a` `x` DATE, CHANGE COLUMN `B` `y z` BIGINT", ["id int", (7, "x date"), (8, "y_z bigint")],  # noqa: E501
         [("id", "id"), ("a", "x"), ("B", "y z")]),
        (61, 'alter table "t" change /* a */ column "B" "x" char(5), drop column "a", add column "n" int', ["id int", (7, "x char(5)"), (8, "n int")],  # noqa: E501
         [("id", "id"), ("B", "x")]),
        (61, "ALTER TABLE `t` DROP COLUMN `a`, ADD COLUMN `x` DATE", ["id int", (3, "B int"), (7, "x date")], [("id", "id"), ("B", "B")]),  # noqa: E501
    ],
)  # fmt: skip
def test_a_column_is_followed_through_new_names_new_types_and_new_places(
    kind: int, query: str, columns: list[str | tuple[int, str]], want: list[tuple[str, str]]
) -> None:
    made = [column(n, c) if isinstance(c, str) else column(*c) for n, c in enumerate(columns, 1)]
    made = [replace(c, offset=n, name=c.name.replace("_", " ")) for n, c in enumerate(made)]
    after = replace(BEFORE, columns=tuple(made))
    assert paired(kind, query, BEFORE, after) == set(want)


def test_a_column_with_a_new_name_and_a_new_type_keeps_its_values(story: Story) -> None:
    old = story.create(
        table(10, "t", "id int", "a varchar(30)", "ts timestamp not null", "j text", primary="id"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`a` VARCHAR(30),`ts` TIMESTAMP NOT NULL,`j` TEXT)",
    )
    story.insert(
        old, {"id": 1, "a": "2020-01-02 03:04:05", "ts": "2020-01-01 20:00:00", "j": '{"a": 1}'}
    )
    at = old.columns
    new = replace(old, columns=(at[0], replace(column(5, "b datetime"), offset=1), *at[2:]))
    story.statement(12, "ALTER TABLE `t` CHANGE COLUMN `a` `b` DATETIME", new)
    newer = replace(
        new, columns=(*new.columns[:2], replace(column(6, "tt datetime not null"), offset=2), at[3])
    )
    story.statement(
        12, "ALTER TABLE `t` CHANGE COLUMN `ts` `tt` DATETIME NOT NULL", newer, time_zone="+08:00"
    )
    newest = replace(
        newer,
        columns=(
            replace(column(7, "jj json"), offset=0),
            *(replace(c, offset=n) for n, c in enumerate(newer.columns[:3], 1)),
        ),
    )
    story.statement(12, "ALTER TABLE `t` CHANGE COLUMN `j` `jj` JSON FIRST", newest)
    story.apply()
    moments = datetime.datetime(2020, 1, 2, 3, 4, 5), datetime.datetime(2020, 1, 2, 4)
    assert story.rows("t", "jj, id, b, tt") == [('{"a": 1}', 1, *moments)]


def test_a_refused_change_never_loses_the_values(story: Story) -> None:
    """What MariaDB refuses as it is written is done in another form, and the column goes on under
    its new name.
    """
    old = story.create(
        table(10, "t", "id int", "n int", primary="id"),
        "CREATE TABLE `t` (`id` INT PRIMARY KEY,`n` INT)",
    )
    story.insert(old, {"id": 1, "n": 7})
    new = replace(
        old, columns=(old.columns[0], replace(column(5, "m varchar(20) not null"), offset=1))
    )
    story.statement(
        12,
        'alter table "t" change "n" "m" varchar(20) character set utf8mb4 not null collate'
        " utf8mb4_bin",
        new,
    )
    newer = replace(new, columns=(new.columns[0], replace(new.columns[1], name="n 2")))
    story.statement(12, 'alter table "t" rename column "m" to "n 2"', newer)
    story.apply()
    assert story.rows("t", "id, `n 2`") == [(1, "7")]


def test_numbers_that_become_text_move_no_clock_and_names_are_only_names(story: Story) -> None:
    moved = replace(column(3, "upd timestamp", default="CURRENT_TIMESTAMP"), flag=8192)
    old = table(10, "we`ird %s", "id int", column(2, "f float"), moved, primary="id")
    old = replace(old, columns=(old.columns[0], replace(old.columns[1], name="f%"), old.columns[2]))
    story.create(
        old,
        "CREATE TABLE `we``ird %s` (`id` INT PRIMARY KEY,`f%` FLOAT,`upd` TIMESTAMP DEFAULT"
        " CURRENT_TIMESTAMP() ON UPDATE CURRENT_TIMESTAMP())",
    )
    story.insert(old, {"id": 1, "f%": 1e20, "upd": "2020-01-01 00:00:00"})
    new = replace(
        old,
        columns=(
            old.columns[0],
            replace(column(5, "f varchar(30)"), name="f%", offset=1),
            old.columns[2],
        ),
    )
    story.statement(12, "ALTER TABLE `we``ird %s` MODIFY COLUMN `f%` VARCHAR(30)", new)
    story.apply()
    assert story.rows("we`ird %s") == [(1, "100000000000000000000", datetime.datetime(2020, 1, 1))]
