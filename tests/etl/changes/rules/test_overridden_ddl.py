"""DDL that operators skip or replace: what runs, once, and what the schema history makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.formats.sql_scripts import changes_rows_only, split_statements
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl import DdlError
from sluice.relay import REPLACE, SKIP, Override
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, table

ADD_COLUMN = 5
OLD = table(11, "item", "id int", "v int", primary="id")
NEW = table(11, "item", "id int", "v int", "w int", primary="id")


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(OLD, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    story.insert(OLD, {"id": 1, "v": 1})
    story.apply()
    return story


def add_column(
    story: Story, query: str = "ALTER TABLE `item` ADD COLUMN `w` int ENGINE_ATTRIBUTE NOBODY KNOWS"
) -> int:
    """A DDL that the downstream can't run as it is written, and a row behind it; its commit_ts."""
    story.statement(ADD_COLUMN, query, NEW)
    at = story._ts
    story.insert(NEW, {"id": 2, "v": 2, "w": 2})
    return at


def decide(story: Story, at: int, action: str, *sql: str) -> None:
    story._relay.overrides.add(Override(at, action, sql, by="ann"))


def sql(story: Story, statement: str) -> list[tuple[Any, ...]]:
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def refuse(story: Story) -> None:
    """Make the downstream refuse any change of the table's structure: it is a view there."""
    sql(story, "RENAME TABLE d.item TO d.base")
    sql(story, "CREATE VIEW d.item AS SELECT * FROM d.base")


def test_a_ddl_that_the_downstream_refuses_names_the_commands_and_replacing_it_goes_on(
    story: Story,
) -> None:
    refuse(story)
    at = add_column(story)
    with pytest.raises(DdlError) as caught:
        story.apply()
    for word in (
        str(at),
        "ALTER TABLE `item`",
        f"`sluice ddl skip {at}`",
        f"`sluice ddl replace {at} --sql",
    ):
        assert word in str(caught.value)
    decide(
        story,
        at,
        REPLACE,
        "ALTER TABLE base ADD COLUMN w int",
        "CREATE OR REPLACE VIEW item AS SELECT * FROM base",
    )
    summary = story.apply()
    assert story.rows("base") == [(1, 1, None), (2, 2, 2)]
    assert any(str(at) in line and "replaced" in line for line in summary.warnings)


def test_a_skipped_ddl_is_not_run_and_rows_behind_it_are_read_with_its_schema(story: Story) -> None:
    at = add_column(story)
    sql(story, "ALTER TABLE d.item ADD COLUMN w int DEFAULT 7")
    decide(story, at, SKIP)
    story.apply()
    assert story.rows("item") == [(1, 1, 7), (2, 2, 2)]


def test_a_ddl_can_be_replaced_by_nothing(story: Story) -> None:
    at = add_column(story)
    sql(story, "ALTER TABLE d.item ADD COLUMN w int DEFAULT 8")
    decide(story, at, REPLACE)
    story.apply()
    assert story.rows("item") == [(1, 1, 8), (2, 2, 2)]


def test_repairing_the_downstream_by_hand_is_not_mistaken_for_the_ddl(story: Story) -> None:
    refuse(story)
    at = add_column(story, "ALTER TABLE `item` ADD COLUMN `w` int")
    with pytest.raises(DdlError):
        story.apply()
    sql(story, "DROP VIEW d.item")
    sql(story, "RENAME TABLE d.base TO d.item")
    sql(story, "ALTER TABLE d.item ADD COLUMN mine int")
    story.apply()
    assert sql(story, "SELECT id, v, w FROM d.item") == [(1, 1, None), (2, 2, 2)]
    assert at


def test_a_statement_that_fails_stops_with_the_hint_and_another_override_begins_anew(
    story: Story,
) -> None:
    at = add_column(story)
    decide(
        story,
        at,
        REPLACE,
        "ALTER TABLE item ADD COLUMN w int",
        "ALTER TABLE nowhere ADD COLUMN x int",
    )
    with pytest.raises(DdlError, match=rf"statement 2 of the 2.*sluice overrides remove {at}"):
        story.apply()
    story._relay.overrides.remove(at)
    decide(story, at, REPLACE, "UPDATE item SET w = 5")
    story.apply()
    assert story.rows("item") == [(1, 1, 5), (2, 2, 2)]


class _Cut(Exception):
    pass


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("statement", range(4))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_each_statement_of_a_replacement_runs_once_however_it_is_interrupted(
    story: Story, monkeypatch: pytest.MonkeyPatch, statement: int, after: bool
) -> None:
    sql(story, "CREATE TABLE d.log (n int AUTO_INCREMENT PRIMARY KEY, t int)")
    at = add_column(story)
    statements = (
        "INSERT INTO log (t) VALUES (1)",
        "ALTER TABLE item ADD COLUMN w int",
        "INSERT INTO log (t) SELECT 2",
        "ALTER TABLE item ADD INDEX (w)",
    )
    decide(story, at, REPLACE, *statements)
    execute = MySQLSession.execute

    def cut(self: MySQLSession, text: str | bytes) -> int:
        if text != statements[statement]:
            return execute(self, text)
        if after:
            execute(self, text)
        self.close()
        raise _Cut

    with monkeypatch.context() as patch, pytest.raises(_Cut):
        patch.setattr(MySQLSession, "execute", cut)
        story.apply()
    story.apply()
    assert [row[0] for row in sql(story, "SELECT t FROM d.log ORDER BY t")] == [1, 2]
    assert story.rows("item") == [(1, 1, None), (2, 2, 2)]
    assert "KEY `w`" in sql(story, "SHOW CREATE TABLE d.item")[0][1]
    (row,) = sql(story, "SELECT checkPoint FROM tidb_binlog.checkpoint")
    assert set(json.loads(row[0])["sluice"]) == {"owner", "process"}


def test_statements_are_split_outside_of_quotes_and_comments() -> None:
    text = (
        "ALTER TABLE `a;b` ADD c varchar(9) DEFAULT 'x;''y'; -- one; two\n/* three; */ UPDATE t SET"
        ' a = "\\";" ;;\n -- nothing\n'
    )
    assert split_statements(text) == [
        "ALTER TABLE `a;b` ADD c varchar(9) DEFAULT 'x;''y'",
        '-- one; two\n/* three; */ UPDATE t SET a = "\\";"',
    ]
    assert split_statements(" ; -- x") == []
    assert [changes_rows_only(each) for each in split_statements(text)] == [False, True]
