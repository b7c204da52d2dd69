"""Times are written as the browser's language does, in its zone; and exactly, in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import expect

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


def test_in_utc_no_offset_is_said_and_a_winter_time_keeps_its_own_in_summer(look: Open) -> None:
    tab = look("jobs", answers(), locale="de-DE", timezone_id="UTC")
    expect(tab.locator("#zone")).to_have_text("Times in UTC.")
    tab = look("jobs", answers(), locale="de-DE", timezone_id=BERLIN)
    summer = int(datetime.fromisoformat("2026-07-01T12:00:00+00:00").timestamp() * 1000)
    text = tab.evaluate(
        "(ms) => import('/sluice/static/format.js').then((f) => f.moment(ms))", summer
    )
    assert text == "01.07.2026, 14:00:00"
