"""Groups of transactions lead to what takes them back, where that is what the search found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.plugins.drawing import CONTEXT, Open, chromium
from tests.plugins.test_local_times import AT_MS

FIRST, LAST = AT_MS << 18, (AT_MS + 60_000) << 18


@pytest.fixture(scope="module")
def look() -> Iterator[Open]:
    with chromium() as opened:
        yield opened


def group(table: str, first_ts: int, last_ts: int) -> dict[str, Any]:
    return {
        "minute": str(FIRST), "table": table, "shape": "", "transactions": 9, "inserts": 0,
        "updates": 0, "deletes": 60, "first_ts": str(first_ts), "last_ts": str(last_ts),
    }  # fmt: skip


def opened(look: Open, query: str, *groups: dict[str, Any]) -> Page:
    found = {
        "found": [], "groups": groups, "large": [], "last": str(LAST), "through": "0",
        "windows": 1, "complete": True, "unknown": [], "problem": "", "hint": "",
    }  # fmt: skip
    tab = look(f"transactions?group=table&{query}", {"transactions": found})
    expect(tab.locator("#groups tbody tr")).to_have_count(len(groups))
    return tab


def test_all_groups_are_taken_back_from_before_their_first_change_through_their_last(
    look: Open,
) -> None:
    ledger, account = group("d.ledger", FIRST + 7, LAST), group("d.account", FIRST, LAST - 7)
    tab = opened(look, "kind=delete&table=d.*", ledger, account)
    address = tab.locator("#all-groups a").get_attribute("href")
    assert address is not None
    wanted = {f"since=before%3A{FIRST}", f"until={LAST}", "table=d.*", "kind=delete", "undo=1"}
    assert set(address.removeprefix("?").split("&")) == wanted
    one = tab.get_by_role("link", name="Take back …").first.get_attribute("href")
    assert one is not None and f"until={LAST}" in one and "table=d.ledger" in one


def test_one_group_has_its_own_link_alone(look: Open) -> None:
    tab = opened(look, "kind=delete", group("d.ledger", FIRST, LAST))
    expect(tab.get_by_role("link", name="Take back …")).to_have_count(1)
    expect(tab.locator("#all-groups")).to_have_count(0)


@pytest.mark.parametrize("query", ["key=7", "kind=ddl", "kind=drop"])
def test_more_than_was_found_is_not_offered_to_be_taken_back(look: Open, query: str) -> None:
    groups = [group(name, FIRST, LAST) for name in ("d.ledger", "d.account")]
    tab = opened(look, query, *groups)
    expect(tab.get_by_role("link", name="Show them")).to_have_count(2)
    for name in ("Take back", "back as one"):
        expect(tab.get_by_role("link", name=name)).to_have_count(0)


def undone(rows: int, back: int, *tables: str) -> dict[str, Any]:
    tried = {"checkpoint": str(LAST), "rows": rows, "count": back, "back": back}
    preview = [{"table": name, "effect": "inserts", "now": "", "then": "id=1"} for name in tables]
    return {
        "preview": preview, "sql": "", "cut": False, "problem": "", "transactions": 9,
        "others": [], "partial": 0, "first_ts": str(FIRST), "last_ts": str(LAST), "notes": [],
        "dry_run": tried | {"unchecked": [], "conflicts": []},
    }  # fmt: skip


def test_several_tables_are_an_option_each_and_a_comma_in_brackets_is_a_names(look: Open) -> None:
    found = undone(60, 0, "d.cart", "d.a,b")
    tab = look(f"transactions?undo=1&since=before:{FIRST}&table=d.cart,d.a[,]b", {"undo": found})
    expect(tab.locator("#range")).to_contain_text("--table d.cart --table 'd.a[,]b' --dry-run")
    expect(tab.locator("#range p").first).to_contain_text("of d.cart, d.a[,]b after")


def test_once_all_rows_are_back_no_command_is_offered_but_both_sides_are_compared(
    look: Open,
) -> None:
    ordered: list[Any] = []
    dag = {"id": "sluice_verify", "may": True}

    def answer(path: str, order: Any) -> tuple[int, bytes]:
        if path.startswith("context?") or path == "context":
            return 200, json.dumps(CONTEXT | {"dags": {"verify": dag}, "problems": []}).encode()
        if order is not None:
            ordered.append((path, order))
            return 409, json.dumps({"error": "no run can begin"}).encode()
        return 200, json.dumps(undone(60, 60, "d.cart", "d.item")).encode()

    tab = look(f"transactions?undo=1&since=before:{FIRST}", answer, refused=True)
    expect(tab.locator("#is-back")).to_contain_text("All 60 rows are as they were")
    expect(tab.locator("#range button")).to_have_count(0)
    tab.get_by_role("button", name="Compare both sides").click()
    expect(tab.locator("#notes")).to_contain_text("no run can begin")
    assert ordered == [("verify?", {"tables": ["d.cart", "d.item"]})]


def test_the_commands_leave_rows_that_the_dry_run_found_changed_since(look: Open) -> None:
    conflict = {"table": "d.cart", "row": "id=7", "why": "was changed since"}
    tried = {"checkpoint": str(LAST), "rows": 60, "count": 1, "unchecked": []}
    found = {
        "preview": [], "sql": "", "cut": False, "problem": "", "transactions": 9, "others": [],
        "partial": 0, "first_ts": str(FIRST), "last_ts": str(LAST),
        "notes": ["two transactions are left out"],
        "dry_run": tried | {"conflicts": [conflict]},
    }  # fmt: skip
    tab = look(f"transactions?undo=1&kind=delete&since=before:{FIRST}", {"undo": found})
    expect(tab.locator("#range")).to_contain_text("--leave-conflicts --dry-run")
    expect(tab.locator("#range")).to_contain_text("--leave-conflicts --apply")
    expect(tab.locator("#range")).to_contain_text("listed below, stay as they are")
    expect(tab.locator("#page")).to_contain_text("1 row of 60 stands in its way")
    expect(tab.locator("#left-out-0")).to_have_text("two transactions are left out")
