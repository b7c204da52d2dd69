"""What filters and routes make of tables, remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.etl.changes.planning import _destinations
from sluice.etl.changes.planning._destinations import Destinations, destinations
from sluice.etl.changes.rules import EventRule, Filter, NameRule, Route, Routes
from tests.tidb.test_rows import make_table

TABLE = replace(make_table("int", [0]), id=7, schema_name="shop", name="orders")
MERGING = Route("shop", "orders*", "all", "orders", "the rule")


def test_a_table_keeps_its_name_unless_a_route_says_otherwise():
    found = Destinations(Filter(), Routes()).for_table(TABLE)
    assert found.table is TABLE
    assert (found.name, found.source, found.is_wanted, found.refusal) == (
        "shop.orders",
        "",
        True,
        "",
    )
    found = Destinations(Filter(), Routes((MERGING,))).for_table(TABLE)
    assert (found.table.full_name, found.name, found.source) == (
        "all.orders",
        "shop.orders",
        "shop.orders",
    )


def test_what_events_a_filter_leaves_out_is_by_the_name_upstream():
    rules = Filter(
        events=(
            EventRule(NameRule("shop", "orders", "it"), frozenset({"delete", "truncate table"})),
        )
    )
    found = Destinations(rules, Routes((MERGING,))).for_table(TABLE)
    assert (found.ignored_kinds, found.may_keep_rows) == (frozenset({2}), True)


def test_a_table_that_is_filtered_out_or_no_table_goes_nowhere():
    rules = Destinations(Filter(ignored_schemas=("shop",)), Routes())
    assert not rules.for_table(TABLE).is_wanted
    assert not Destinations(Filter(), Routes()).for_table(replace(TABLE, is_view=True)).is_wanted
    assert (
        Destinations(Filter(ignored_schemas=("shop",)), Routes())
        .for_table(replace(TABLE, schema_name="other"))
        .is_wanted
    )


def test_a_table_that_meets_others_unasked_is_refused():
    there = replace(TABLE, schema_name="all")
    found = Destinations(Filter(), Routes((MERGING,))).for_table(there)
    assert "all.orders keeps its name" in found.refusal


def test_the_same_table_goes_to_the_same_object_and_another_definition_or_rule_elsewhere():
    rules = destinations(Filter(), Routes((MERGING,)))
    assert destinations(Filter(), Routes((MERGING,))) is rules
    first = rules.for_table(TABLE)
    assert rules.for_table(TABLE) is first
    renamed = replace(TABLE, name="customers")
    assert rules.for_table(renamed).table is renamed
    assert rules.for_table(TABLE) == first
    assert destinations(Filter(), Routes()).for_table(TABLE).table is TABLE


def test_so_many_tables_at_most_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_destinations, "_MAX_CACHED_TABLES", 3)
    rules = Destinations(Filter(), Routes())
    for number in range(10):
        table = replace(TABLE, id=number)
        assert rules.for_table(table).table is table
        assert len(rules._known) <= 3
