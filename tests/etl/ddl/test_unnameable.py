"""Tables and views whose names no MariaDB or MySQL takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etl import operate
from etl.ddl import DdlError
from etl.settings import Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def test_a_table_with_such_a_name_stops_by_its_job_and_another_statement_goes_in_its_place(story: Story) -> None:
    story.create(table(10, "t😀", "id int", primary="id"), "CREATE TABLE `t😀` (`id` INT PRIMARY KEY)")
    with pytest.raises(DdlError, match=r"DDL job 3 at commit_ts \d+ in d") as error:
        story.apply()
    at = int(str(error.value).partition("commit_ts ")[2].split()[0])
    settings = Settings(Upstream("unused"), Relay(story.url), story.server.downstream)
    operate.replace_ddl(settings, at, ["CREATE TABLE d.smile (id INT PRIMARY KEY)"])
    story.apply()
    assert story.rows("smile") == []


def test_a_view_with_such_a_name_is_left_out(story: Story) -> None:
    base = story.create(table(10, "t", "id int", primary="id"), "")
    view = replace(
        table(11, "v😀", "id int"), is_view=True, view={"view_select": "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t`"}
    )
    story.statement(21, "CREATE VIEW `v😀`", view)
    story.statement(24, "DROP VIEW `v😀`", 11, name="v😀")
    story.insert(base, {"id": 1})
    assert any("v😀" in warning for warning in story.apply().warnings)
    assert story.rows("t") == [(1,)]
