"""Which tables, databases, changes and statements a filter lets through, and where routes take
them; no server needed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.rules import Filter, RouteError, Routes, ScopeError, ScopeResult, scope_ddl
from sluice.etl.changes.rules._ddl_names import rename_database, rename_tables
from sluice.etl.changes.rules.filters import statement_event
from sluice.etl.settings.rules import RuleError, parse_filter, parse_routes
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Schema, Table
from tests.etl.story import table


def filtered(**keys: Any) -> Filter:
    return parse_filter({key.replace("_", "-"): value for key, value in keys.items()})[0]


def pair(schema: str, name: str) -> dict[str, str]:
    return {"db-name": schema, "tbl-name": name}


def test_a_table_passes_if_a_do_rule_matches_it_and_no_ignore_rule_does() -> None:
    rules = filtered(
        replicate_do_db=["a"],
        replicate_do_table=[pair("b", "x*")],
        ignore_table=[pair("~.", "~_tmp$")],
        ignore_schemas="c, d",
        ignore_db=["e"],
    )
    passing = {
        (s, t) for s in "abcde" for t in ("x", "x1", "y", "x_tmp") if rules.wants_table(s, t)
    }
    assert passing == {("a", "x"), ("a", "x1"), ("a", "y"), ("b", "x"), ("b", "x1")}
    assert Filter().wants_table("anything", "at_all")


def test_databases_of_wanted_tables_are_wanted_and_ignoring_wins() -> None:
    rules = filtered(replicate_do_table=[pair("b", "x")], ignore_table=[pair("a", "~.*")])
    assert [s for s in ("a", "b", "c") if rules.wants_schema(s)] == ["b"]
    assert not rules.wants_whole_schema("b")
    only_blocked = filtered(ignore_table=[pair("a", "~.*"), pair("b", "t")])
    assert [s for s in ("a", "b", "c") if only_blocked.wants_schema(s)] == ["b", "c"]
    assert [s for s in ("a", "b", "c") if only_blocked.wants_whole_schema(s)] == ["c"]


@pytest.mark.parametrize(
    "schema",
    ["mysql", "INFORMATION_SCHEMA", "Performance_Schema", "tidb_binlog", "sluice_recycle", "Mine"],
)
def test_system_schemas_and_our_own_never_pass(schema: str) -> None:
    rules, _ = parse_filter({"replicate-do-db": ["~."]}, ("mine",))
    assert not rules.wants_schema(schema)
    assert not rules.wants_table(schema, "t")


NAMES = st.sampled_from(["a", "ab", "b", "b1"])
PATTERNS = st.sampled_from(["a", "a*", "b?", "~b", "*", "~^ab"])
RULES = st.lists(st.builds(pair, PATTERNS, PATTERNS), max_size=2)


@given(st.lists(PATTERNS, max_size=2), RULES, RULES, st.lists(PATTERNS, max_size=1), NAMES, NAMES)
def test_rows_and_statements_of_a_table_are_filtered_the_same(
    do_db: list[str],
    do_table: list[dict[str, str]],
    ignore_table: list[dict[str, str]],
    ignore_db: list[str],
    schema: str,
    name: str,
) -> None:
    rules = filtered(
        replicate_do_db=do_db,
        replicate_do_table=do_table,
        ignore_table=ignore_table,
        ignore_db=ignore_db,
    )
    made = Table(7, 1, schema, name)
    ddl = DdlJob(
        1,
        type=Action.ADD_COLUMN,
        schema_name=schema,
        table_name=name,
        query="ALTER TABLE t ADD COLUMN c INT",
        effect=DdlEffect({}, {7: made}),
    )
    scoped = scope_ddl(ddl, {7: made}, rules, Routes())
    assert (scoped.ddl is not None) == rules.wants_table(schema, name)
    if rules.wants_table(schema, name):
        create = DdlJob(
            1,
            type=Action.CREATE_SCHEMA,
            schema_name=schema,
            query="CREATE DATABASE x",
            effect=DdlEffect({1: Schema(1, schema)}),
        )
        blocked_whole = any(rule.matches(schema, "") for rule in rules.ignored_tables)
        assert (scope_ddl(create, {}, rules, Routes()).ddl is not None) == (not blocked_whole), (
            "a wanted table's database is made"
        )


@pytest.mark.parametrize(
    ("query", "event"),
    [
        ("CREATE DATABASE `d`", "create database"),
        ("DROP SCHEMA `d`", "drop database"),
        ("ALTER DATABASE d CHARACTER SET utf8", "alter database"),
        ("CREATE TABLE `t` (`view` INT)", "create table"),
        ("TRUNCATE `t`", "truncate table"),
        ("RENAME TABLE a TO b", "rename table"),
        ("ALTER TABLE t ADD INDEX i(a)", "alter table"),
        ("CREATE UNIQUE INDEX i ON t(a)", "create index"),
        ("DROP INDEX i ON t", "drop index"),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", "create view"),
        ("DROP VIEW v", "drop view"),
        ("RECOVER TABLE t", ""),
    ],
)
def test_statements_are_named_as_the_original_names_them(query: str, event: str) -> None:
    assert statement_event(query) == event


def test_the_event_filter_leaves_out_kinds_of_changes_and_statements() -> None:
    rules = filtered(
        binlog_filter_rule={
            "a": {"ignore-event": ["ALL DML"], "ignore-sql": ["^drop  *table"]},
            "b": {"ignore-event": ["delete"]},
        },
        table_migrate_rule=[
            {"source": {"schema": "d", "table": "x"}, "binlog-filter-rule": ["a"]},
            {"source": {"schema": "d", "table": "y*"}, "binlog-filter-rule": ["b"]},
        ],
    )
    assert [rules.ignored_row_kinds("d", name) for name in ("x", "y1", "z")] == [
        {0, 1, 2},
        {2},
        frozenset(),
    ]
    assert rules.ignoring_rule("d", "x", "DROP TABLE `x`") is not None
    assert rules.ignoring_rule("d", "y", "DROP TABLE `y`") is None


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"replicate-do-table": [pair("a", "b"), pair("a", "~(")]}, "[filter] replicate-do-table[2] tbl-name = '~(': missing ), unterminated subpattern at position 1"),  # noqa: E501
        ({"replicate-do-db": ["ok", "~["]}, "[filter] replicate-do-db[2] = '~['"),
        ({"ignore-table": [{"db-name": "a"}]}, "ignore-table[1]: tbl-name is missing"),
        ({"ignore-table": [{"db-name": "a", "table": "b"}]}, "unknown key table"),
        ({"ignore-tables": []}, "unknown key [filter] ignore-tables"),
        ({"ignore-txn-commit-ts": ["5"]}, "ignore-txn-commit-ts[1] = '5'"),
        ({"binlog-filter-rule": {"r": {"ignore-event": ["add column"]}}}, "[filter.binlog-filter-rule.r] ignore-event[1] = 'add column'"),  # noqa: E501
        ({"binlog-filter-rule": {"r": {"ignore-sql": ["x", "("]}}}, "ignore-sql[2] = '('"),
        ({"table-migrate-rule": [{"source": {"schema": "a", "table": "b"}, "binlog-filter-rule": ["r"]}]}, "there is no binlog-filter-rule 'r'"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_mistake_in_a_filter_is_told_with_the_rule(document: dict[str, Any], text: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_filter(document)
    assert text in str(caught.value)


def routes(*rules: tuple[str, str, str, str]) -> Routes:
    keys = ("schema-pattern", "table-pattern", "target-schema", "target-table")
    return parse_routes(
        [{key: value for key, value in zip(keys, rule, strict=True) if value} for rule in rules]
    )


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"schema-pattern": "a"}, "[[route]] 2: target-schema is missing"),
        ({"schema-pattern": "~(", "target-schema": "x"}, "[[route]] 2 schema-pattern = '~('"),
        (
            {"schema-pattern": "a", "target-schema": "x", "target-table": "y"},
            "without table-pattern",
        ),
        ({"schema-pattern": "a", "target-schema": "MySQL"}, "target-schema = 'MySQL'"),
        ({"schema-pattern": "a", "target-schema": "tidb_binlog"}, "belongs to"),
        ({"schema-pattern": "a", "target-schema": "x", "table": "y"}, "unknown key table"),
    ],
)
def test_a_mistake_in_a_route_is_told_with_the_rule(rule: dict[str, Any], text: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_routes([{"schema-pattern": "z", "target-schema": "y"}, rule])
    assert text in str(caught.value)


def test_rules_about_tables_go_before_rules_about_databases_and_the_first_decides() -> None:
    rules = routes(("shop", "", "store", ""), ("shop", "a*", "x", ""), ("shop", "ab", "y", "z"))
    found = [rules.target("SHOP", name) for name in ("b", "a1", "ab")]
    assert [(t.schema, t.table) for t in found] == [("store", "b"), ("x", "a1"), ("x", "ab")]
    assert rules.target("other", "b").route is None
    assert rules.target_schema("Shop") == "store"


def test_a_target_is_merged_if_a_rule_says_that_several_tables_go_there() -> None:
    assert routes(("shard_*", "t", "d", "t")).target("shard_1", "t").is_merged
    assert routes(("s", "t_*", "d", "t")).target("s", "t_1").is_merged
    assert routes(("a", "", "d", ""), ("b", "", "d", "")).target("a", "t").is_merged
    assert routes(("a", "t", "d", "t"), ("b", "t", "d", "t")).target("b", "t").is_merged
    assert not routes(("a", "", "d", "")).target("a", "t").is_merged
    assert not routes(("a", "", "d", ""), ("a", "u", "d", "v")).target("a", "u").is_merged


def test_a_table_that_only_happens_to_have_a_targets_name_is_an_error_with_both_names() -> None:
    for rules, schema, name in (
        (routes(("a", "", "d", "")), "d", "t"),
        (routes(("a", "", "d", ""), ("a", "u", "d", "v")), "a", "v"),
    ):
        with pytest.raises(RouteError, match=f"{schema}.{name}"):
            rules.target(schema, name)


def scope(
    kind: int, query: str, before: dict[int, Table], after: dict[int, Table | None], filters: Filter
) -> ScopeResult:
    ddl = DdlJob(
        9,
        job_id=1,
        type=kind,
        schema_name="d",
        table_name="t",
        query=query,
        effect=DdlEffect({}, after),
    )
    return scope_ddl(ddl, before, filters, Routes())


def test_of_a_statement_about_several_tables_only_the_wanted_ones_are_left() -> None:
    t, u = table(1, "t", "id int", primary="id"), table(2, "u", "id int", primary="id")
    rules = filtered(ignore_table=[pair("d", "u*")])
    made = scope(60, "", {}, {1: t, 2: u}, rules)
    assert made.ddl is not None and set(made.ddl.effect.tables) == {1}
    renamed = scope(
        47,
        "",
        {1: t, 2: u},
        {1: table(1, "t2", "id int", primary="id"), 2: table(2, "u2", "id int", primary="id")},
        rules,
    )
    assert renamed.ddl is not None and set(renamed.ddl.effect.tables) == set(
        renamed.ddl.before
    ) == {1}
    assert scope(4, "DROP TABLE u", {2: u}, {2: None}, rules).ddl is None


def test_an_exchange_with_a_table_that_is_not_replicated_stops() -> None:
    p, x = table(1, "p", "id int", partition={"type": 1}), table(2, "x", "id int")
    with pytest.raises(ScopeError, match=r"d\.x, which is not replicated"):
        scope(
            42,
            "ALTER TABLE p EXCHANGE PARTITION q WITH TABLE x",
            {1: p, 2: x},
            {1: p, 2: None, 3: table(3, "x", "id int")},
            filtered(ignore_table=[pair("d", "x")]),
        )


def moved(schema: str, name: str) -> tuple[str, str]:
    return (f"N{schema}", f"{name}2") if schema in ("d", "e") else (schema, name)


@pytest.mark.parametrize(
    ("statement", "want"),
    [
        (
            (
                "CREATE TABLE IF NOT EXISTS `t` (`a` INT, FOREIGN KEY (`a`) REFERENCES `p`(`a`) ON"
                " DELETE CASCADE) COMMENT = 'TABLE `t`'"
            ),
            (
                "CREATE TABLE IF NOT EXISTS `Nd`.`t2` (`a` INT, FOREIGN KEY (`a`) REFERENCES"
                " `Nd`.`p2`(`a`) ON DELETE CASCADE) COMMENT = 'TABLE `t`'"
            ),
        ),
        ("create table e.t like x", "create table `Ne`.`t2` like `Nd`.`x2`"),
        ("CREATE TABLE `t` (LIKE `u`)", "CREATE TABLE `Nd`.`t2` (LIKE `Nd`.`u2`)"),
        (
            "CREATE TABLE t (a INT CHECK (a LIKE b))",
            "CREATE TABLE `Nd`.`t2` (a INT CHECK (a LIKE b))",
        ),
        (
            (
                "ALTER TABLE `d`.`t` ADD `like` INT DEFAULT NEXTVAL(`q`), RENAME INDEX `a` TO `b`,"
                " RENAME TO `e`.`q`"
            ),
            (
                "ALTER TABLE `Nd`.`t2` ADD `like` INT DEFAULT NEXTVAL(`Nd`.`q2`), RENAME INDEX `a`"
                " TO `b`, RENAME TO `Ne`.`q2`"
            ),
        ),
        (
            "alter table p exchange partition p2 with table other.px",
            "alter table `Nd`.`p2` exchange partition p2 with table `other`.`px`",
        ),
        (
            "RENAME TABLE `a` TO `e`.`b`, d.c TO `f``x`",
            "RENAME TABLE `Nd`.`a2` TO `Ne`.`b2`, `Nd`.`c2` TO `Nd`.`f``x2`",
        ),
        ("DROP TABLE IF EXISTS a, `e`.`b`", "DROP TABLE IF EXISTS `Nd`.`a2`, `Ne`.`b2`"),
        ("CREATE UNIQUE INDEX `i` ON `t` (`on`)", "CREATE UNIQUE INDEX `i` ON `Nd`.`t2` (`on`)"),
        ("DROP INDEX `i` ON `t`", "DROP INDEX `i` ON `Nd`.`t2`"),
        ("truncate t", "truncate `Nd`.`t2`"),
        ("CREATE SEQUENCE `s` START WITH 1", "CREATE SEQUENCE `Nd`.`s2` START WITH 1"),
        (
            (
                "CREATE VIEW `v` (`a`) AS SELECT `d`.`t`.`a`, EXTRACT(YEAR FROM c) FROM (`d`.`t`"
                " LEFT JOIN `u` AS `x` ON `t`.`a`=`x`.`a`), `w` WHERE `a` IN (SELECT `i` FROM `q`)"
                " ORDER BY `a`, `b`"
            ),
            "CREATE VIEW `Nd`.`v2` (`a`) AS SELECT `t`.`a`, EXTRACT(YEAR FROM c) FROM (`Nd`.`t2` AS `t` LEFT JOIN `Nd`.`u2` AS `x` ON `t`.`a`=`x`.`a`), "  # noqa: E501
            "`Nd`.`w2` AS `w` WHERE `a` IN (SELECT `i` FROM `Nd`.`q2` AS `q`) ORDER BY `a`, `b`",
        ),
    ],
)
def test_names_in_a_statement_are_replaced_where_they_name_tables(
    statement: str, want: str
) -> None:
    assert rename_tables(statement, "d", moved) == want


def test_the_name_of_a_database_is_replaced_and_quoted() -> None:
    assert (
        rename_database("create database if not exists shop character set utf8", "a`b")
        == "create database if not exists `a``b` character set utf8"
    )
