"""Times are written as the browser's language does, in its zone; and exactly, in UTC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from sluice.tidb.moments import parse_moment
from tests.plugins.drawing import Open, chromium

AT_MS = 1_795_352_600_123
"""2026-11-22T13:03:20.123Z"""
BERLIN = "Europe/Berlin"
LOCALES = {
    "de-DE": ("22.11.2026, 14:03:20", "22.11.2026, 14:03:20.123", "22. Nov."),
    "en-US": ("Nov 22, 2026, 2:03:20 PM", "Nov 22, 2026, 2:03:20.123 PM", "Nov 22"),
}
"""A moment, the same with milliseconds, and its day, in Berlin."""


@pytest.fixture(scope="module")
def look() -> Iterator[Open]:
    with chromium() as opened:
        yield opened


def answers() -> dict[str, Any]:
    entry = {
        "at": str(AT_MS << 18), "commit_ts": str(AT_MS << 18), "rows": 1,
        "tables": [{"table": "shop.t", "inserts": 1, "updates": 0, "deletes": 0, "keys": []}],
    }  # fmt: skip
    return {
        "transactions": {
            "found": [entry], "groups": [], "large": [], "last": entry["commit_ts"],
            "through": "0", "windows": 1, "complete": True, "unknown": [], "problem": "",
            "hint": "",
        },
        "jobs": {
            "jobs": [], "more": 0,
            "actions": [{"token": "a", "at_ms": AT_MS, "by": "ann", "what": "pause-job",
                         "about": "backfill-1", "outcome": ""}],
        },
    }  # fmt: skip


def plain(text: str) -> str:
    """Return a text with the usual spaces: in English a narrow one stands before PM."""
    return text.replace("\u202f", " ")


@pytest.mark.parametrize("locale", LOCALES)
def test_a_time_is_written_as_its_readers_write_it_and_exactly_in_utc(
    look: Open, locale: str
) -> None:
    _, exact, _ = LOCALES[locale]
    tab = look("transactions", answers(), locale=locale, timezone_id=BERLIN)
    shown = tab.locator("#entries time")
    expect(shown).to_have_count(1)
    assert plain(shown.inner_text()) == exact
    assert shown.get_attribute("datetime") == "2026-11-22T13:03:20.123Z"
    assert shown.get_attribute("title") == "2026-11-22 13:03:20.123 UTC"
    expect(tab.locator("#zone")).to_contain_text(f"Times in {BERLIN}, now GMT+0")


@pytest.mark.parametrize("locale", LOCALES)
def test_words_such_as_ago_hold_the_moment_too(look: Open, locale: str) -> None:
    tab = look("jobs", answers(), locale=locale, timezone_id=BERLIN)
    shown = tab.locator("#actions time")
    assert shown.get_attribute("datetime") == "2026-11-22T13:03:20.123Z"


@pytest.mark.parametrize("locale", LOCALES)
def test_axes_and_words_use_the_same_language(look: Open, locale: str) -> None:
    tab = look("jobs", answers(), locale=locale, timezone_id=BERLIN)
    moment, _, day = LOCALES[locale]
    found = tab.evaluate(
        "async (ms) => { const [f, c] = await Promise.all([import('/sluice/static/format.js'),"
        " import('/sluice/static/chart.js')]); return [f.moment(ms), f.day(ms),"
        " c.moments(ms - 86400e3, ms + 86400e3, 9).map((each) => each.text)]; }",
        AT_MS,
    )
    assert (plain(found[0]), found[1]) == (moment, day)
    assert day in found[2]  # midnight has its day
    noon = {"de-DE": "12:00", "en-US": "12:00 PM"}[locale]
    assert noon in [plain(text) for text in found[2]]


@pytest.mark.slow
def test_in_utc_no_offset_is_said_and_a_winter_time_keeps_its_own_in_summer(look: Open) -> None:
    tab = look("jobs", answers(), locale="de-DE", timezone_id="UTC")
    expect(tab.locator("#zone")).to_have_text("Times in UTC.")
    tab = look("jobs", answers(), locale="de-DE", timezone_id=BERLIN)
    summer = int(datetime.fromisoformat("2026-07-01T12:00:00+00:00").timestamp() * 1000)
    text = tab.evaluate(
        "(ms) => import('/sluice/static/format.js').then((f) => f.moment(ms))", summer
    )
    assert text == "01.07.2026, 14:00:00"


HOUR_MS = 3_600_000
ARCHIVED = {
    "url": "file:///archive", "lo": str((AT_MS - 9 * HOUR_MS) << 18), "hi": str(AT_MS << 18),
    "landed_ts": str(AT_MS << 18), "keep": {}, "promised_ts": "0", "held_by": "", "disks": [],
    "whole_from_ts": str((AT_MS - 9 * HOUR_MS) << 18), "tables": [], "tables_in_all": 0,
    "tables_found": 0, "unknown": [], "holes": [], "faults": [], "snapshots": [], "drills": [],
    "spaces": {
        name: {"bytes": 0, "growth": {"bytes_a_day": 0, "days": None}}
        for name in ("relay", "log", "lake", "snapshots")
    },
}  # fmt: skip


def asked_of_time(tab: Page, typed: str) -> str:
    """Return the moment that the page Time asks for when a person types one."""
    tab.locator("#until").fill(typed)
    tab.get_by_role("button", name="Copy for Airflow's form").click()
    note = tab.locator(".note").last
    expect(note).to_contain_text("plan_only")  # no page but a secure one may copy
    return str(json.loads(note.inner_text().partition("copied: ")[2].rstrip("\u00d7\n "))["until"])


def asked_of_transactions(tab: Page, typed: str) -> str:
    """Return the moment that the page Transactions asks for when a person types one."""
    tab.locator("#since").fill(typed)
    with tab.expect_request("**/api/transactions?*since=*") as asked:
        tab.get_by_role("button", name="Search").click()
    return parse_qs(urlsplit(asked.value.url).query)["since"][0]


@pytest.mark.parametrize("page", ["time", "transactions"])
def test_a_typed_time_without_a_zone_is_one_of_the_browser_and_may_be_as_pages_show_it(
    look: Open, page: str
) -> None:
    tab = look(page, {**answers(), "time": ARCHIVED}, timezone_id=BERLIN)
    ask = asked_of_time if page == "time" else asked_of_transactions
    expect(tab.locator("main")).to_contain_text(f"A time without a zone is one of {BERLIN}.")
    for typed in ("2026-11-22 14:03", "2026-11-22T14:03:20", "yesterday 14:00"):
        assert parse_moment(ask(tab, typed)) == parse_moment(f"{typed} {BERLIN}")
    for typed, said in [
        ("9:03:20", "today 09:03:20"),
        ("2026-11-22 9:03", "2026-11-22 09:03"),
        ("Nov 22, 2026, 9:03:20.476 AM", "2026-11-22 09:03:20"),
        ("22.11.2026, 09:03:20", "2026-11-22 09:03:20"),
    ]:
        assert ask(tab, typed) == f"{said} {BERLIN}"
    for typed in ("2026-11-22T13:03:20Z", "2026-11-22 14:03 Asia/Tokyo", "20m", str(AT_MS << 18)):
        assert ask(tab, typed) == typed


def test_the_bar_of_time_has_a_typed_moment_where_the_browser_s_clock_shows_it(look: Open) -> None:
    tab = look("time", {**answers(), "time": ARCHIVED}, locale="de-DE", timezone_id=BERLIN)
    places = []
    for typed in ("2026-11-22 12:03:20.123", "2026-11-22T11:03:20.123Z"):
        tab.locator("#until").fill(typed)
        expect(tab.locator("#time-bar .chosen")).to_have_count(1)
        line = tab.locator("#time-bar .chosen").get_attribute("d") or ""
        places.append(float(line.removeprefix("M").partition(",")[0]))
    assert places[0] == pytest.approx(places[1], abs=0.1)  # the bar ends now
    tab.locator("#until").fill("2026-11-22 12:03 Asia/Tokyo")
    expect(tab.locator("#time-bar .chosen")).to_have_count(0)
    expect(tab.locator("#when")).to_contain_text("A plan says where this moment lies.")
    expect(tab.get_by_role("button", name="Copy for Airflow's form")).to_be_enabled()
