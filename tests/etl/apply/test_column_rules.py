"""Columns left out: the downstream has the rest, as a real server selects it from whole rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.errors import SluiceError
from sluice.etl.changes.rules import Route, Routes
from sluice.etl.settings import Settings, SettingsError, parse_settings
from sluice.etl.settings.rules import RuleError, parse_filter
from sluice.tidb.ddl_actions import Action
from sluice.tidb.schema import Index, Table
from tests.etl.apply.drawn_table import KINDS, DrawnTable
from tests.etl.apply.ruled_columns import apply, drawn_rule, names, selected, settings_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story, column, table
from tests.examples import examples

CLUSTERED = table(11, "t", "id int", "a varchar(9)", "b int", primary="id")


@pytest.mark.ci_cases(every=2)
@pytest.mark.quick_cases(every=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
@pytest.mark.parametrize("renames", [pytest.param(False, marks=pytest.mark.slow), True])
def test_random_histories_leave_the_columns_that_the_rule_leaves(
    mariadb: MariaDBServer,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    mode: str,
    renames: bool,
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
        rule = drawn_rule(data, renames=renames)
        upstream = DrawnTable(story, kind, data, renames=rule.takes_any_name)
        settings = settings_of(story, rule.raw, mode=mode)
        for _ in range(data.draw(st.integers(1, 6))):
            upstream.step()
            if data.draw(st.integers(0, 3)) == 0:
                apply(story, settings)
        apply(story, settings)
        kept = rule.columns(upstream.table)
        assert names(mariadb) == [*kept.values()]
        assert story.rows("t") == selected(mariadb, upstream, [*kept])

    check()


@pytest.mark.parametrize(
    ("made", "rule", "who"),
    [
        (CLUSTERED, {"leave-out": ["ID"]}, "the primary key needs"),
        (CLUSTERED, {"keep": ["a"]}, "the primary key needs"),
        (table(11, "t", "id int", "a int", unique=("a",)), {"leave-out": ["a"]}, "the key u2"),
        (
            table(
                11, "t", "id int", "a int", column(3, "g int", generated="`A` + 1"), primary="id"
            ),
            {"leave-out": ["a"]},
            "column g needs",
        ),
        (
            table(11, "t", "id int", "a int", partition={"type": 1, "expr": "`a`"}),
            {"leave-out": ["a"]},
            "the partitioning needs",
        ),
        (
            replace(CLUSTERED, foreign_keys=({"cols": [{"O": "b", "L": "b"}]},)),
            {"leave-out": ["b"]},
            "a foreign key needs",
        ),
        (table(11, "t", "a int", "b int"), {"leave-out": ["a", "b"]}, "leaves no column"),
    ],
)
def test_a_column_that_something_needs_stops_by_the_rules_and_the_columns_name(
    mariadb: MariaDBServer, tmp_path: Path, made: Table, rule: dict[str, Any], who: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(made, "CREATE TABLE t (...)")
    with pytest.raises(SluiceError, match=rf"\[\[filter.columns\]\] 1 .*{who}"):
        apply(story, settings_of(story, rule))


@pytest.mark.parametrize("rows", [[], [{"tables": ["d.t"], "where": "id = 1"}]])
def test_a_ddl_that_makes_a_left_out_column_a_key_stops_before_it_runs(
    mariadb: MariaDBServer, tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(CLUSTERED, "CREATE TABLE t (...)")
    settings = settings_of(story, {"leave-out": ["b"]}, filter={"rows": rows})
    story.insert(CLUSTERED, {"id": 1, "a": "x", "b": 2})
    apply(story, settings)
    unique = replace(CLUSTERED, indexes=(Index(5, "ub", (("b", 2, -1),), unique=True),))
    story.statement(Action.ADD_INDEX, "ALTER TABLE t ADD UNIQUE ub (b)", unique)
    why = r"leaves out column b of d\.t, which the key ub needs\. Statement: ALTER TABLE t ADD"
    with pytest.raises(SluiceError, match=why):
        apply(story, settings)
    assert story.rows("t") == [(1, "x")]


@pytest.mark.parametrize(("was", "now"), [("a", "z"), ("b", "z")])
def test_a_renamed_column_stops_if_the_rule_names_it_by_one_of_its_names(
    mariadb: MariaDBServer, tmp_path: Path, was: str, now: str
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(CLUSTERED, "CREATE TABLE t (...)")
    left_out = ["b"] if was == "b" else ["z", "b"]
    settings = settings_of(story, {"leave-out": left_out})
    apply(story, settings)
    columns = tuple(replace(c, name=now) if c.name == was else c for c in CLUSTERED.columns)
    renamed = replace(CLUSTERED, columns=columns)
    story.statement(Action.MODIFY_COLUMN, f"ALTER TABLE t CHANGE {was} {now} int", renamed)
    with pytest.raises(SluiceError, match=f"it makes column {was} of d.t {now}, and .* leaves out"):
        apply(story, settings)
    both = settings_of(story, {"leave-out": [was, now, "b"]})
    if was == "b":
        apply(story, both)
        assert names(mariadb) == ["id", "a"]


def test_a_rename_between_tables_of_different_rules_stops(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(CLUSTERED, "CREATE TABLE t (...)")
    settings = settings_of(story, {"leave-out": ["b"]})
    apply(story, settings)
    story.statement(Action.RENAME_TABLE, "RENAME TABLE t TO u", replace(CLUSTERED, name="u"))
    with pytest.raises(SluiceError, match=r"has other rules for columns of d\.t than of d\.u"):
        apply(story, settings)


def test_a_row_rule_by_a_left_out_column_stops(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    story.create(CLUSTERED, "CREATE TABLE t (...)")
    some = {"rows": [{"tables": ["d.t"], "where": "b = 1"}]}
    with pytest.raises(SluiceError, match="has no column b"):
        apply(story, settings_of(story, {"leave-out": ["b"]}, filter=some))


def test_row_rules_and_column_rules_are_about_a_table_together(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    story.create(CLUSTERED, "CREATE TABLE t (...)")
    some = {"rows": [{"tables": ["d.t"], "where": "a = 'eu'"}]}
    settings = settings_of(story, {"leave-out": ["b"]}, filter=some)
    row: Row = {"id": 1, "a": "us", "b": 2}
    story.insert(CLUSTERED, row, {"id": 2, "a": "eu", "b": 3})
    apply(story, settings)
    assert story.rows("t") == [(2, "eu")]
    story.update(CLUSTERED, row, {"a": "eu", "b": 5})
    apply(story, settings)
    assert story.rows("t") == [(1, "eu"), (2, "eu")]


def test_a_merged_table_keeps_all_its_columns_or_stops(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    routes = Routes((Route("d", "t*", "d", "all", "[[route]] 1"),))
    story.create(CLUSTERED, "CREATE TABLE t (...)")
    with pytest.raises(SluiceError, match=r"d\.t, which is merged with other tables"):
        apply(story, settings_of(story, {"leave-out": ["b"]}, routes=routes))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"leave-out": ["a"]}, "tables = .* is missing"),
        ({"tables": ["d.t"]}, "either leave-out"),
        ({"tables": ["d.t"], "leave-out": ["a"], "keep": ["b"]}, "either leave-out"),
        ({"tables": ["d.t"], "leave_out": ["a"]}, "unknown key leave_out"),
    ],
)
def test_a_rule_that_cannot_be_understood_names_itself(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=rf"\[\[filter.columns\]\] 1.*{why}"):
        parse_filter({"columns": [rule]})


def settings_with(kind: str, kafka: dict[str, Any], **rule: Any) -> Settings:
    return parse_settings(
        {
            "upstream": {"pd-urls": "-"},
            "relay": {"url": "file:///relay"},
            "downstream": {"type": kind},
            "file": {"dir": "/binlogs"},
            "kafka": {"brokers": "b:9092", "savepoint": "/s", "format": "simple", **kafka},
            "filter": {"columns": [rule]},
        }
    )


@pytest.mark.parametrize(
    ("kafka", "rule", "why"),
    [
        (
            {"dispatch": "columns:id,Region"},
            {"tables": ["shop.*"], "leave-out": ["region"]},
            r"dispatch names column Region, .* 1 \(leave-out region\) leaves it out of shop",
        ),
        (
            {"dispatches": {"shop.orders": "columns:region"}},
            {"tables": ["Shop.*"], "keep": ["id"]},
            r'dispatches "shop.orders" names column region.* 1 \(keep id\) leaves it out of Shop',
        ),
        (
            {"dispatches": {"shop.*": "columns:region"}},
            {"tables": ["shop.orders"], "leave-out": ["region"]},
            r'dispatches "shop.\*" names column region',
        ),
    ],
)
def test_settings_refuse_a_dispatch_by_a_column_that_a_rule_leaves_out(
    kafka: dict[str, Any], rule: dict[str, Any], why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        settings_with("kafka", kafka, **rule)


@pytest.mark.parametrize(
    ("kind", "kafka"),
    [
        ("file", {"dispatch": "columns:region"}),
        ("kafka", {"dispatch": "key"}),
        ("kafka", {"dispatches": {"shop.orders": "key"}, "dispatch": "columns:region"}),
        ("kafka", {"dispatches": {"crm.*": "columns:region"}}),
    ],
)
def test_settings_take_a_rule_beside_dispatches_by_other_columns_or_tables(
    kind: str, kafka: dict[str, Any]
) -> None:
    assert settings_with(kind, kafka, tables=["shop.orders"], **{"leave-out": ["region"]})
