"""What rules make of a table is shown as it happens: by the rules themselves, for a row given."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import RequestError
from sluice.etl.operate.rule_check import RuleCheck, check_rules
from sluice.etl.settings import Downstream, Kafka, Relay, Settings, Upstream
from sluice.etl.settings.rules import parse_filter, parse_routes
from tests.etl.masking import KEY, SECTION, VARIABLE
from tests.etl.story import table

ORDERS = table(
    11, "orders", "id int", "region varchar(9)", "amount decimal(9,2)", "b varbinary(4)",
    primary="id",
)  # fmt: skip
OTHER = table(12, "other", "id int", primary="id")
EU = {"tables": ["d.orders"], "where": "region = 'eu'"}


def checked(
    *rows: dict[str, Any],
    old: dict[str, Any] | None = None,
    new: dict[str, Any] | None = None,
    name: str = "d.orders",
    **more: Any,
) -> RuleCheck:
    route = {"schema-pattern": "d", "table-pattern": "orders", "target-schema": "e"}
    settings = Settings(
        Upstream("unused"),
        Relay("file:///unused"),
        Downstream(host="unused"),
        filters=parse_filter({"rows": list(rows), **more})[0],
        routes=parse_routes([route]),
    )
    return check_rules(settings, [ORDERS, OTHER], name, old, new)


def test_a_masked_column_is_shown_with_its_mask_and_never_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    masks = {"region": "digits", "amount": "null", "b": {"constant": "x"}}
    rule = {"tables": ["d.orders"], "mask": {"region": "digits", "amount": "null", "gone": "null"}}
    found = checked(columns=[rule], mask=SECTION)
    assert found.lines[-3:] == [
        "  region: masked as digits",
        "  amount: masked as null",
        "  b: as upstream",
    ]
    (warning,) = found.warnings
    assert "names gone, a column that none of its tables has" in warning
    (problem,) = checked(columns=[rule | {"mask": masks}], mask=SECTION).problems
    assert "can't mask column b of d.orders as constant 'x': a constant can't be" in problem
    assert KEY not in str([found, problem])


def test_an_added_column_is_shown_with_what_alter_table_takes() -> None:
    rule = {"tables": ["d.o*"], "rename": {"region": "area"}}
    add = {
        "label": "concat(region, '!')",
        "double": {"value": "amount * 2", "type": "DECIMAL(20,4)"},
    }
    found = checked(columns=[rule | {"add": add}])
    by = "added by [[filter.columns]] 1 (rename region to area; add label, double), as"
    assert found.lines[-2:] == [
        f"  label: {by} VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin GENERATED ALWAYS AS"
        " (concat(`area`, '!')) STORED",
        f"  double: {by} DECIMAL(20,4) GENERATED ALWAYS AS ((`amount` * 2)) STORED",
    ]
    assert not found.problems and not found.warnings
    found = checked(columns=[rule | {"add": {"label": "concat(gone)"}}])
    assert "adds column label to d.orders: d.orders has no column gone" in found.problems[0]
    assert "names gone, a column that none of its tables has" in found.warnings[0]


@pytest.mark.parametrize(("value", "warnings"), [("with-ddl", 0), ("none", 1)])
def test_rows_that_readers_of_a_topic_keep_are_warned_of(value: str, warnings: int) -> None:
    kafka = Kafka("unused", savepoint="/unused", format="debezium-avro", truncate_messages=value)
    settings = Settings(
        Upstream("unused"), Relay("file:///unused"), Downstream(type="kafka"), kafka=kafka
    )
    found = check_rules(settings, [ORDERS], "d.orders").warnings
    assert len(found) == warnings
    assert all("keep the rows of a table that TRUNCATE TABLE empties" in each for each in found)


def test_a_table_is_shown_with_its_target_its_rules_and_each_column() -> None:
    found = checked(EU)
    assert found.lines == [
        "d.orders: to e.orders, by [[route]] 1 ('d'.'orders' to e)",
        "  rows that [[filter.rows]] 1 (region = 'eu') selects",
        "  in SQL: (`region` = 'eu')",
        "  id: as upstream",
        "  region: as upstream, and [[filter.rows]] 1 (region = 'eu') looks at it",
        "  amount: as upstream",
        "  b: as upstream",
    ]
    assert not found.problems and not found.warnings


@pytest.mark.parametrize(
    ("old", "new", "becomes"),
    [
        (None, {"id": 1, "region": "eu"}, "insert: insert"),
        (None, {"id": 1, "REGION": "us"}, "insert: nothing"),
        ({"region": "us"}, {"region": "eu"}, "update: insert"),
        ({"region": "eu", "amount": 1.5}, {"region": "us"}, "update: delete"),
        ({"region": "eu"}, {"region": "eu", "b": "x"}, "update: update"),
        ({"region": "eu"}, None, "delete: delete"),
        ({"region": None}, None, "delete: nothing"),
    ],
)
def test_a_row_is_shown_as_what_it_becomes(
    old: dict[str, Any] | None, new: dict[str, Any] | None, becomes: str
) -> None:
    assert checked(EU, old=old, new=new).lines[-1].startswith(becomes)


def test_a_rule_that_would_stop_replication_is_a_problem_and_an_unused_one_a_warning() -> None:
    unused = {"tables": ["d.no*"], "where": "a = 1"}
    found = checked({"tables": ["d.*"], "where": "amount = '1'"}, unused)
    (problem,) = found.problems
    assert "[[filter.rows]] 1" in problem and "write a number without quotes" in problem
    assert found.warnings == ["[[filter.rows]] 2 (a = 1) is about no table that the upstream has"]


def test_what_is_not_replicated_or_not_there_is_told_apart() -> None:
    ignored = [{"db-name": "d", "tbl-name": "orders"}]
    assert "ignore-table" in checked(**{"ignore-table": ignored}).lines[0]
    with pytest.raises(RequestError, match=r"did you mean d\.orders"):
        checked(name="d.order")
    with pytest.raises(RequestError, match="stores no column nope"):
        checked(EU, new={"nope": 1})
    with pytest.raises(RequestError, match="'x' is no value of id"):
        checked(EU, new={"id": "x"})


def test_columns_that_are_left_out_are_shown_by_their_rule_and_unknown_ones_warned_of() -> None:
    rule = {"tables": ["d.orders"], "leave-out": ["Region", "regoin"]}
    text = "[[filter.columns]] 1 (leave-out Region, regoin)"
    found = checked(columns=[rule])
    assert found.lines[1:] == [
        "  id: as upstream",
        f"  region: left out by {text}",
        "  amount: as upstream",
        "  b: as upstream",
    ]
    assert found.warnings == [f"{text} names regoin, a column that none of its tables has"]
    assert checked(columns=[{"tables": ["d.orders"], "rename": {"regoin": "z"}}]).warnings
    (problem,) = checked(columns=[rule | {"leave-out": ["id"]}]).problems
    assert "leaves out column id of d.orders, which the primary key needs" in problem


def test_a_renamed_column_is_shown_under_both_names_and_judged_by_the_upstreams() -> None:
    rule = {"tables": ["d.orders"], "rename": {"REGION": "amount", "amount": "region"}}
    found = checked(EU, new={"region": "eu"}, columns=[rule])
    assert found.lines[3:] == [
        "  id: as upstream",
        "  region: as upstream, as amount, and [[filter.rows]] 1 (region = 'eu') looks at it",
        "  amount: as upstream, as region",
        "  b: as upstream",
        "insert: insert",
    ]
    taken = rule | {"rename": {"region": "amount"}}
    (problem,) = checked(columns=[taken]).problems
    assert "renames column region of d.orders to amount, which is the name of another" in problem


def test_a_table_whose_deleted_rows_stay_is_shown_with_the_column_to_add() -> None:
    rule = {"tables": ["d.orders"], "soft-delete": "gone"}
    found = checked(columns=[rule])
    assert found.lines[-1] == (
        "  gone: added by [[filter.columns]] 1 (soft-delete gone), as DATETIME(3) NULL: when the"
        " row was deleted, in UTC"
    )
    (problem,) = checked(columns=[rule | {"soft-delete": "REGION"}]).problems
    assert "in column REGION: the table has a column of this name" in problem


def test_a_table_whose_versions_are_kept_is_shown_with_its_columns_and_its_key() -> None:
    found = checked(columns=[{"tables": ["d.orders"], "history": {"to": "until"}}])
    by = "added by [[filter.columns]] 1 (history valid_from, until, commit_ts), as"
    assert found.lines[-4:] == [
        f"  valid_from: {by} DATETIME(3) NOT NULL: when the version began, in UTC",
        f"  until: {by} DATETIME(3) NULL: when it ended, NULL while the row is upstream",
        f"  commit_ts: {by} BIGINT NOT NULL: the commit timestamp that made it",
        "  the primary key: (id, commit_ts), as each version is a row",
    ]
