"""What a change of rules means for tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.etl.changes.rules import RecordedRules, rule_differences
from sluice.etl.settings.rules import parse_filter, parse_routes

ROWS = {"tables": ["shop.orders"], "where": "region = 'eu'"}
OUT = {"tables": ["shop.orders"], "leave-out": ["note"]}
MASK = {"key-env": "TEST_RULE_EFFECTS_KEY", "relay-log": "clear"}
HASHED = {"tables": ["shop.orders"], "mask": {"name": "hash"}}
ROUTE = {
    "schema-pattern": "shop",
    "table-pattern": "orders",
    "target-schema": "shop",
    "target-table": "sold",
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_RULE_EFFECTS_KEY", "0123456789abcdef0123456789abcdef")


def recorded(raw: Mapping[str, Any], *routes: Mapping[str, str]) -> RecordedRules:
    made = RecordedRules.of(parse_filter(raw)[0], parse_routes(list(routes)))
    return RecordedRules.from_text(made.to_text())


def differences(before: RecordedRules, after: RecordedRules, table: str = "orders") -> str:
    return "; ".join(rule_differences(before, after, "shop", table))


@pytest.mark.parametrize(
    ("raw", "routes", "named"),
    [
        ({"rows": [ROWS]}, (), "[[filter.rows]]"),
        ({"columns": [OUT]}, (), "[[filter.columns]]"),
        ({"columns": [HASHED], "mask": MASK}, (), "[[filter.columns]]"),
        ({}, (ROUTE,), "[[route]] took it to shop.orders before, and not to shop.sold"),
    ],
)
def test_a_rule_that_comes_or_goes_changes_its_table_and_no_other(
    raw: Mapping[str, Any], routes: tuple[Mapping[str, str], ...], named: str
) -> None:
    before, after = recorded({}), recorded(raw, *routes)
    assert named in differences(before, after)
    assert named.partition(" took")[0] in differences(after, before)
    assert differences(before, after, "customers") == differences(after, after) == ""


def test_rules_in_another_order_or_by_another_glob_change_no_table() -> None:
    more = {"tables": ["shop.*"], "where": "id > 0"}
    before = recorded({"rows": [ROWS, more], "columns": [OUT]})
    after = recorded(
        {
            "rows": [more, ROWS | {"tables": ["shop.ord*"]}],
            "columns": [OUT | {"leave-out": ["NOTE"]}],
        }
    )
    assert differences(before, after) == differences(before, after, "customers") == ""


def test_another_key_of_masks_changes_the_masked_table(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {"columns": [HASHED], "mask": MASK}
    before = recorded(raw)
    assert differences(before, recorded(raw)) == ""
    monkeypatch.setenv("OTHER_TEST_RULE_EFFECTS_KEY", "fedcba9876543210fedcba9876543210")
    other = {**raw, "mask": MASK | {"key-env": "OTHER_TEST_RULE_EFFECTS_KEY"}}
    assert "[[filter.columns]]" in differences(before, recorded(other))
    monkeypatch.setenv("OTHER_TEST_RULE_EFFECTS_KEY", "0123456789abcdef0123456789abcdef")
    assert differences(before, before) == ""
    assert "0123456789abcdef" not in before.to_text()


def test_a_table_that_comes_into_what_is_replicated_is_named_and_one_that_goes_is_not() -> None:
    without = recorded({"ignore-table": [{"db-name": "shop", "tbl-name": "orders"}]})
    assert differences(without, recorded({})) == "rules left out changes of it"
    assert differences(recorded({}), without) == ""
    of_changes = recorded({"rows": [ROWS | {"operations": ["update"]}]})
    assert differences(recorded({}), of_changes) == ""
