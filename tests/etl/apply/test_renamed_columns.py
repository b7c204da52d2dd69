"""Columns that a rule renames: what a rule can't mean is named, at the start and at the DDL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.etl.apply._verify_applied import first_unapplied_row
from sluice.etl.changes.rules import ColumnRuleError, ReplicationRules, Route, Routes
from sluice.etl.downstream import Checkpoint, MySQLSession
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Index, Table
from tests.etl.apply.ruled_columns import apply, names, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story, column, table, wider

PEOPLE = table(11, "t", "id int", "a varchar(9)", "b int", primary="id")
RULE = {"rename": {"A": "name"}}


def story_of(server: MariaDBServer, folder: Path, made: Table = PEOPLE) -> Story:
    story = Story(server, folder)
    story.create(made, "CREATE TABLE t (...)")
    return story


@pytest.mark.parametrize(
    ("made", "rename", "why"),
    [
        (PEOPLE, {"ID": "number"}, "renames column id of d.t, which the primary key names"),
        (table(11, "t", "id int", "a int", unique=("a",)), {"a": "z"}, "which the key u2 names"),
        (
            table(11, "t", "id int", "a int", column(3, "g int", generated="`A` + 1")),
            {"a": "z", "g": "y"},
            "which column g names",
        ),
        (
            table(11, "t", "id int", "a int", partition={"type": 1, "expr": "`a`"}),
            {"a": "z"},
            "which the partitioning names",
        ),
        (
            replace(PEOPLE, foreign_keys=({"cols": [{"O": "b", "L": "b"}]},)),
            {"b": "z"},
            "which a foreign key names",
        ),
        (PEOPLE, {"a": "B"}, "renames column a of d.t to B, which is the name of another column"),
    ],
)
def test_a_column_that_something_names_is_refused_by_the_rules_and_the_columns_name(
    made: Table, rename: dict[str, str], why: str
) -> None:
    filters = parse_filter({"columns": [{"tables": ["d.t"], "rename": rename}]})[0]
    with pytest.raises(ColumnRuleError, match=rf"\[\[filter.columns\]\] 1 .*{why}"):
        filters.narrowed(made)


def test_two_rules_that_give_a_column_different_names_are_refused() -> None:
    rules = [{"tables": ["d.t"], "rename": {"a": new}} for new in ("x", "y")]
    with pytest.raises(ColumnRuleError, match=r"1 .* and .* 2 .* give column a of d\.t different"):
        parse_filter({"columns": rules})[0].narrowed(PEOPLE)


def test_a_table_that_is_shaped_already_stays_as_it_is() -> None:
    rules = [
        {"tables": ["d.*"], "leave-out": ["b"], "rename": {"a": "c", "c": "a"}},
        {"tables": ["d.*"], "keep": ["id", "a", "b", "c"]},
    ]
    filters = parse_filter({"columns": rules})[0]
    made = wider(PEOPLE, column(4, "c int"))
    once = filters.narrowed(made)
    assert [c.name for c in once.stored_columns] == ["id", "c", "a"]
    assert filters.narrowed(once) == once


def test_the_upstreams_names_come_and_go_and_the_downstreams_follow(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    story.insert(PEOPLE, {"id": 1, "a": "x", "b": 2})
    apply(story, settings)
    assert names(mariadb) == ["id", "name", "b"]
    columns = PEOPLE.columns
    for spelled, there in (("name", "name"), ("z", "z"), ("a", "name")):
        columns = (columns[0], replace(columns[1], name=spelled), columns[2])
        now = replace(PEOPLE, columns=columns)
        story.statement(Action.MODIFY_COLUMN, f"ALTER TABLE t CHANGE a {spelled} ...", now)
        story.insert(now, {"id": len(story.rows("t")) + 9, spelled: spelled, "b": None})
        apply(story, settings)
        assert names(mariadb) == ["id", there, "b"]
    assert story.rows("t") == [(1, "x", 2), (10, "name", None), (11, "z", None), (12, "a", None)]


@pytest.mark.parametrize("way", ["column", "key"])
def test_a_ddl_that_leaves_the_rule_no_meaning_stops_before_it_runs(
    mariadb: MariaDBServer, tmp_path: Path, way: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    apply(story, settings)
    if way == "column":
        after, query = wider(PEOPLE, column(4, "Name int")), "ALTER TABLE t ADD Name int"
        why = r"renames column a of d\.t to name, which is the name of another column"
    else:
        key = Index(5, "ua", (("a", 1, -1),), unique=True)
        after, query = replace(PEOPLE, indexes=(key,)), "ALTER TABLE t ADD UNIQUE ua (a)"
        why = r"renames column a of d\.t, which the key ua names"
    kind = Action.ADD_COLUMN if way == "column" else Action.ADD_INDEX
    story.statement(kind, query, after)
    with pytest.raises(SluiceError, match=rf"{why}\. Statement: {query[:17]}"):
        apply(story, settings)
    assert names(mariadb) == ["id", "name", "b"]


def test_a_row_rule_names_a_renamed_column_as_the_upstream_does(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    rows = {"rows": [{"tables": ["d.t"], "where": "a = 'eu' AND b > 0"}]}
    swapped = {"rename": {"a": "name", "b": "a"}}
    settings = settings_of(story, swapped, filter=rows)
    row: Row = {"id": 1, "a": "us", "b": 2}
    story.insert(PEOPLE, row, {"id": 2, "a": "eu", "b": 3})
    apply(story, settings)
    assert (names(mariadb), story.rows("t")) == (["id", "name", "a"], [(2, "eu", 3)])
    row = story.update(PEOPLE, row, {"a": "eu", "b": 5})
    apply(story, settings)
    assert story.rows("t") == [(1, "eu", 5), (2, "eu", 3)]
    story.update(PEOPLE, row, {"b": 0})
    apply(story, settings)
    assert story.rows("t") == [(2, "eu", 3)]


def test_rows_that_a_drainer_may_have_written_are_looked_for_under_their_names(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    rows = {"rows": [{"tables": ["d.t"], "where": "a = 'eu'"}]}
    settings = settings_of(story, {"rename": {"a": "b", "b": "a"}}, filter=rows)
    began = story.now
    row: Row = {"id": 1, "a": "us", "b": 2}
    story.insert(PEOPLE, row, {"id": 2, "a": "eu", "b": 3})
    story.update(PEOPLE, row, {"a": "eu"})
    apply(story, settings)
    rules = ReplicationRules(settings.filters, settings.routes)
    left = Checkpoint(began, consistent=False, safe_until=story.now)

    def first_unapplied() -> str:
        session = MySQLSession(mariadb.downstream)
        session.connect()
        try:
            relay = settings.open_relay()
            return first_unapplied_row(session, relay, rules, left, story.now)
        finally:
            session.close()

    assert first_unapplied() == ""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE d.t SET b = 'us' WHERE id = 1")
    assert "d.t, key id=1" in first_unapplied()


def test_a_merged_table_keeps_its_columns_names_or_stops(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    routes = Routes((Route("d", "t*", "d", "all", "[[route]] 1"),))
    story = story_of(mariadb, tmp_path)
    with pytest.raises(SluiceError, match=r"renames columns of d\.t, which is merged"):
        apply(story, settings_of(story, RULE, routes=routes))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"rename": ["a"]}, "rename = .* expected"),
        ({"rename": {"a": 1}}, "rename = .* expected"),
        ({"rename": {"a": "x", "A": "y"}}, "rename: a is there twice"),
        ({"rename": {"a": "x", "b": "X"}}, "rename: x is there twice"),
        ({"rename": {"a": ""}}, "no server takes ''"),
        ({"rename": {"a": "x "}}, "no server takes 'x '"),
        ({"rename": {"a": "x" * 65}}, "no server takes"),
        ({"rename": {"a": "\U0001f600"}}, "no server takes"),
        ({"rename": {"a": "_TIDB_rowid"}}, "hidden row id"),
        ({"rename": {"a": "x"}, "leave-out": ["A"]}, "leaves out the column a that it renames"),
        ({"rename": {"a": "x"}, "keep": ["b"]}, "leaves out the column a that it renames"),
    ],
)
def test_a_rule_that_cannot_be_understood_names_itself(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=rf"\[\[filter.columns\]\] 1.*{why}"):
        parse_filter({"columns": [{"tables": ["d.t"], **rule}]})
