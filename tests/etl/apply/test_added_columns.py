"""Columns that a rule adds: the downstream's are what a real server computes of whole rows."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.etl.changes.rules import ColumnRuleError, Route, Routes, rules_digest
from sluice.etl.settings import SettingsError, parse_settings, with_target
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Table
from tests.etl.apply.added_columns import expressions
from tests.etl.apply.drawn_table import KINDS, DrawnTable
from tests.etl.apply.ruled_columns import apply, names, selected, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story, column, table, wider
from tests.examples import examples

PEOPLE = table(11, "t", "id int", "a varchar(9)", "b int", "c decimal(6,2)", primary="id")
ADD = {"full": "concat(A, '-', b)", "source": "'eu'", "twice": "c * 2"}
RULE = {"add": ADD}


def story_of(server: MariaDBServer, folder: Path, made: Table = PEOPLE) -> Story:
    story = Story(server, folder)
    story.create(made, "CREATE TABLE t (...)")
    return story


@pytest.mark.ci_cases("parallel")
@pytest.mark.quick_cases(every=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_random_histories_leave_what_a_server_computes_of_their_rows(
    mariadb: MariaDBServer, tmp_path_factory: pytest.TempPathFactory, kind: str, mode: str
) -> None:
    @tried(
        deadline=None,
        max_examples=examples(8),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        story = Story(mariadb, tmp_path_factory.mktemp("story"))
        lasting = data.draw(st.sampled_from(["l varchar(9)", "l decimal(10,2)", "l bigint"]))
        upstream = DrawnTable(story, kind, data, lasting)
        read = [c for c in upstream.table.columns if c.name in ("id", "l")]
        some = st.lists(expressions(upstream.table, read), min_size=1, max_size=3)
        add = {f"N {number}": text for number, text in enumerate(data.draw(some))}
        settings = settings_of(story, {"add": add}, mode=mode)
        for _ in range(data.draw(st.integers(1, 6))):
            upstream.step()
            if data.draw(st.integers(0, 3)) == 0:
                apply(story, settings)
        apply(story, settings)
        kept = [c.name for c in upstream.table.columns]
        assert names(mariadb) == [*kept, *add]
        assert story.rows("t") == selected(mariadb, upstream, [*kept, *add.values()])

    check()


def test_the_upstreams_columns_come_and_go_and_the_added_ones_stay_behind_them(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    row: Row = {"id": 1, "a": "x", "b": 2, "c": "1.50"}
    story.insert(PEOPLE, row, {"id": 2, "a": None, "b": 3, "c": None})
    apply(story, settings)
    assert story.rows("t") == [
        (1, "x", 2, Decimal("1.50"), "x-2", "eu", Decimal("3.00")),
        (2, None, 3, None, None, "eu", None),
    ]
    more = wider(PEOPLE, column(5, "d int"))
    story.statement(Action.ADD_COLUMN, "ALTER TABLE t ADD d int", more)
    row = story.update(more, row | {"d": None}, {"a": "y", "d": 7})
    apply(story, settings)
    assert names(mariadb) == ["id", "a", "b", "c", "d", *ADD]
    assert story.rows("t")[0] == (1, "y", 2, Decimal("1.50"), 7, "y-2", "eu", Decimal("3.00"))
    story.statement(Action.DROP_COLUMN, "ALTER TABLE t DROP d", PEOPLE)
    story.delete(PEOPLE, {"id": 2, "a": None, "b": 3, "c": None})
    apply(story, settings)
    assert story.rows("t") == [(1, "y", 2, Decimal("1.50"), "y-2", "eu", Decimal("3.00"))]


def changed(name: str, spec: str) -> Table:
    columns = tuple(column(c.offset + 1, spec) if c.name == name else c for c in PEOPLE.columns)
    return replace(PEOPLE, columns=columns)


@pytest.mark.parametrize(
    ("kind", "after", "why"),
    [
        (Action.DROP_COLUMN, replace(PEOPLE, columns=PEOPLE.columns[:2]), "d.t has no column b"),
        (Action.MODIFY_COLUMN, changed("a", "z varchar(9)"), "d.t has no column a"),
        (
            Action.MODIFY_COLUMN,
            changed("a", "a varchar(20)"),
            r"it changes column a of d\.t \(values of full have other widths then\), from which"
            r" \[\[filter.columns\]\] 1 .* computes full",
        ),
        (Action.MODIFY_COLUMN, changed("b", "b int unsigned"), "another type or collation"),
        (Action.MODIFY_COLUMN, changed("c", "c decimal(5,2)"), "it becomes shorter"),
        (
            Action.ADD_COLUMN,
            wider(PEOPLE, column(5, "FULL int")),
            "adds column full to d.t: the table has a column of this name",
        ),
    ],
)
def test_a_ddl_about_what_an_expression_reads_stops_before_it_runs(
    mariadb: MariaDBServer, tmp_path: Path, kind: int, after: Table, why: str
) -> None:
    story = story_of(mariadb, tmp_path)
    settings = settings_of(story, RULE)
    apply(story, settings)
    story.statement(kind, "ALTER TABLE t ...", after)
    with pytest.raises(SluiceError, match=f"{why}.*Statement: ALTER TABLE t"):
        apply(story, settings)
    assert names(mariadb) == ["id", "a", "b", "c", *ADD]


def test_a_number_that_no_bigint_holds_stops_at_its_row(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    wide = table(11, "t", "id int", "n bigint", primary="id")
    story = story_of(mariadb, tmp_path, wide)
    story.insert(wide, {"id": 1, "n": 2**62})
    with pytest.raises(SluiceError, match="out of range"):
        apply(story, settings_of(story, {"add": {"twice": "n * 2"}}))
    assert story.rows("t") == []


def test_a_renamed_column_and_one_beside_left_out_ones_are_read(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    rule = {"keep": ["id", "a"], "rename": {"a": "name"}, "add": {"upper": "upper(a)"}}
    settings = settings_of(story, rule)
    story.insert(PEOPLE, {"id": 1, "a": "x", "b": 2, "c": None})
    apply(story, settings)
    assert (names(mariadb), story.rows("t")) == (["id", "name", "upper"], [(1, "x", "X")])


def test_a_table_that_is_shaped_already_stays_as_it_is() -> None:
    rules = [{"tables": ["d.*"], **RULE}, {"tables": ["d.*"], "keep": ["id", "a", "b", "c"]}]
    filters = parse_filter({"columns": rules})[0]
    once = filters.narrowed(PEOPLE)
    assert [c.name for c in once.columns] == ["id", "a", "b", "c", *ADD]
    assert [c.name for c in once.stored_columns] == ["id", "a", "b", "c"]
    assert filters.narrowed(once) == once
    assert Table.from_json(once.to_json()) == once


def test_a_table_that_was_there_without_the_column_is_not_taken_for_the_one(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = story_of(mariadb, tmp_path)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.t (id int primary key, a varchar(9), b int, c decimal(6,2))")
    with pytest.raises(SluiceError, match=r"d\.t is there already and has other columns"):
        apply(story, settings_of(story, RULE))


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([{"add": {"A": "'x'"}}], r"1 \(add A\) adds column A to d\.t: the table has a column"),
        ([{"add": {"x": "gone"}}], r"adds column x to d\.t: d\.t has no column gone"),
        ([{"add": {"x": "a", "y": "x"}}], r"adds column y to d\.t: d\.t has no column x"),
        ([{"leave-out": ["a"], "add": {"x": "a"}}], "it reads column a, which a rule leaves out"),
        ([{"leave-out": ["a"], "add": {"a": "'x'"}}], "the table has a column of this name"),
        ([{"rename": {"a": "x"}, "add": {"x": "'x'"}}], "the table has a column of this name"),
        ([{"add": {"x": "1"}}, {"add": {"X": "2"}}], "1 .* and .* 2 .* add different columns X"),
    ],
)
def test_a_column_that_makes_no_sense_is_refused_by_the_rules_and_the_columns_name(
    rules: list[dict[str, Any]], why: str
) -> None:
    filters = parse_filter({"columns": [{"tables": ["d.t"], **rule} for rule in rules]})[0]
    with pytest.raises(ColumnRuleError, match=why):
        filters.narrowed(PEOPLE)


def test_a_merged_table_gets_no_columns_of_rules(mariadb: MariaDBServer, tmp_path: Path) -> None:
    routes = Routes((Route("d", "t*", "d", "all", "[[route]] 1"),))
    story = story_of(mariadb, tmp_path)
    with pytest.raises(SluiceError, match=r"adds columns of d\.t, which is merged"):
        apply(story, settings_of(story, RULE, routes=routes))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"add": ["a"]}, "add = .* expected"),
        ({"add": {"x": 1}}, 'add x = 1: "expression" or'),
        ({"add": {"x": {"type": "DATE"}}}, '"expression" or'),
        ({"add": {"x": {"value": "1", "typo": "DATE"}}}, '"expression" or'),
        ({"add": {"x": {"value": "1", "type": "INT"}}}, "add x: type = 'INT': VARCHAR"),
        ({"add": {"x": "1", "X": "2"}}, "add: x is there twice"),
        ({"add": {"x ": "1"}}, "no server takes 'x '"),
        ({"add": {"_tidb_rowid": "1"}}, "hidden row id"),
        ({"add": {"x": "sleep(9)"}}, r"add x: sleep\(…\): there is no such function"),
    ],
)
def test_a_rule_that_cannot_be_understood_names_itself(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=rf"\[\[filter.columns\]\] 1.*{why}"):
        parse_filter({"columns": [{"tables": ["d.t"], **rule}]})


@pytest.mark.parametrize("kind", ["kafka", "file"])
def test_settings_of_kafka_and_files_refuse_added_columns(tmp_path: Path, kind: str) -> None:
    document = {
        "upstream": {"pd-urls": "-"},
        "relay": {"url": f"file://{tmp_path}/relay"},
        "downstream": {"type": kind},
        "file": {"dir": str(tmp_path)},
        "filter": {"columns": [{"tables": ["d.t"], **RULE}]},
    }
    why = rf"filter\.columns\]\] 1 .* columns can be added in databases alone.* type is {kind}"
    with pytest.raises(SettingsError, match=why):
        parse_settings(document)
    database = parse_settings({**document, "downstream": {"host": "h"}})
    other = {"downstream": {"host": "h2"}, "filter": {}}
    assert with_target(database, {"downstream": {"host": "h2"}}).filters.columns
    assert not with_target(database, other).filters.columns


def test_the_digest_of_rules_counts_added_columns_and_is_that_of_before_without() -> None:
    def digest(*rules: dict[str, Any]) -> str:
        raw = [{"tables": ["d.t"], **rule} for rule in rules]
        return rules_digest(parse_filter({"columns": raw})[0], Routes())

    assert digest({"leave-out": ["a"]}, {"rename": {"b": "x"}}) == "ebf93c35672ebfa3"
    one, other = ({"add": {"x": {"value": "1", "type": t}}} for t in ("BIGINT", "DECIMAL(9)"))
    assert len({digest(one), digest(other), digest({"add": {"x": "1"}})}) == 3
