"""The rules of a restore: exactly the tables that are named, into databases by a pattern."""

from __future__ import annotations

import pytest

from sluice.etl.changes.rules import SchemaPattern, filter_for_tables


def test_exactly_these_tables_are_wanted_however_they_are_written() -> None:
    wanted = filter_for_tables([("Shop", "Orders"), ("odd.one", "a`b*")], ("own",))
    assert wanted.wants_table("shop", "ORDERS") and wanted.wants_table("odd.one", "A`B*")
    assert not wanted.wants_table("shop", "orders2") and not wanted.wants_table("other", "orders")
    assert wanted.wants_schema("SHOP") and not wanted.wants_schema("other")
    assert not wanted.wants_whole_schema("shop")
    assert not filter_for_tables([("own", "t"), ("mysql", "user")], ("own",)).wants_table(
        "own", "t"
    )
    assert not filter_for_tables([("mysql", "user")]).wants_table("mysql", "user")


@pytest.mark.parametrize(
    ("schema", "goes_to"),
    [("shop", "shop_restored"), ("odd{x}`*", "odd{x}`*_restored"), ("Größe", "Größe_restored")],
)
def test_every_database_goes_where_the_pattern_says_and_nothing_is_merged(
    schema: str, goes_to: str
) -> None:
    routes = SchemaPattern.from_pattern("{schema}_restored")
    target = routes.target(schema, "t")
    assert (target.schema, target.table, target.is_merged) == (goes_to, "t", False)
    assert routes.target_schema(schema) == goes_to
    assert routes.concerns_schema(schema) and routes.rules


def test_a_pattern_that_leaves_names_as_they_are_routes_nothing() -> None:
    assert not SchemaPattern.from_pattern("{schema}").rules
