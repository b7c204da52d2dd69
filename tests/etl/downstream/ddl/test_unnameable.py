"""Tables and views whose names no MariaDB or MySQL takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl import operate
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.tidb.schema import Schema
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def test_a_table_with_such_a_name_stops_by_its_job_and_another_statement_goes_in_its_place(
    story: Story,
) -> None:
    story.create(
        table(10, "t😀", "id int", primary="id"), "CREATE TABLE `t😀` (`id` INT PRIMARY KEY)"
    )
    with pytest.raises(DdlError, match=r"DDL job 3 at commit_ts \d+ in d") as error:
        story.apply()
    at = int(str(error.value).partition("commit_ts ")[2].split()[0])
    settings = Settings(Upstream("unused"), Relay(story.url), story.server.downstream)
    operate.replace_ddl(settings, at, ["CREATE TABLE d.smile (id INT PRIMARY KEY)"])
    story.apply()
    assert story.rows("smile") == []


@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize("what", ["table", "column", "rename", "database"])
def test_such_a_name_reaches_nothing_that_has_a_question_mark_in_its_place(
    story: Story, what: str
) -> None:
    """MySQL writes the one for the other."""
    near = story.create(table(10, "t?", "id int", "c? int", primary="id"), "")
    story.insert(near, {"id": 1, "c?": 2})
    story.statement(
        1,
        "CREATE DATABASE `d?`",
        schemas={2: Schema(2, "d?", "utf8mb4", "utf8mb4_bin")},
        schema="d?",
    )
    story.apply()
    if what == "table":
        story.create(table(11, "t😀", "id int", "c? int", primary="id"), "")
    elif what == "column":
        story.statement(
            12,
            "ALTER TABLE `t?` CHANGE COLUMN",
            replace(near, columns=(near.columns[0], column(3, "c😀 int"))),
        )
    elif what == "rename":
        story.statement(14, "RENAME TABLE", replace(near, name="t😀"))
    else:
        story.statement(2, "DROP DATABASE `d😀`", schemas={3: None}, schema="d😀")
    with pytest.raises(DdlError, match=r"beyond U\+FFFF: .*😀"):
        story.apply()
    assert story.rows("t?") == [(1, 2)]
    with story.server.connect() as connection, connection.cursor() as cursor:
        assert cursor.execute("SHOW DATABASES LIKE 'd?'") == 1
        assert cursor.execute("SELECT `c?` FROM d.`t?`") == 1


def test_a_view_with_such_a_name_is_left_out(story: Story) -> None:
    base = story.create(table(10, "t", "id int", primary="id"), "")
    view = replace(
        table(11, "v😀", "id int"),
        is_view=True,
        view={"view_select": "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t`"},
    )
    story.statement(21, "CREATE VIEW `v😀`", view)
    story.statement(24, "DROP VIEW `v😀`", 11, name="v😀")
    story.insert(base, {"id": 1})
    assert any("v😀" in warning for warning in story.apply().warnings)
    assert story.rows("t") == [(1,)]
