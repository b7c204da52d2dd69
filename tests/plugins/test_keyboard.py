"""Whoever has only a keyboard reaches all that can be clicked, sees where they are, and can act."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from sluice.etl.settings import load_settings
from tests.etl.mariadb_fixture import MariaDBServer
from tests.plugins.drawing import Answer, Open, chromium
from tests.plugins.page_states import State, standing

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

CLICKABLE = "a[href], button:not([disabled]), input, select, textarea, summary"
PAGES = (
    "overview", "tables", f"tables?table={quote('d.account')}", "transactions",
    "transactions?at={at}", "jobs", "jobs?job={job}", "time", "quality", "doctor",
)  # fmt: skip
NUMBER_ALL = """(selector) => {
  const all = [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility());
  all.forEach((each, n) => { each.dataset.number = n; });
  return all.length;
}"""
FOCUSED = """() => {
  const at = document.activeElement;
  if (at === document.body) return null;
  const { outlineStyle, outlineWidth } = getComputedStyle(at);
  const { top, bottom } = at.getBoundingClientRect();
  const bar = document.querySelector(".top");
  const covered = bar.contains(at) ? 0 : bar.getBoundingClientRect().bottom;
  const isShown = bottom > covered + 4 && top < innerHeight - 4;
  const isMarked = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
  return { number: at.dataset.number ?? "", isShown, isMarked, what: at.outerHTML.slice(0, 120) };
}"""


@pytest.fixture(scope="module")
def look() -> Iterator[Open]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def busy(
    mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[State, Answer]]:
    with standing("busy", mariadb_server, tmp_path_factory) as found:
        yield found


@pytest.mark.parametrize("page", PAGES)
def test_the_tab_key_reaches_all_that_can_be_clicked_and_shows_where_it_is(
    look: Open, busy: tuple[State, Answer], page: str
) -> None:
    state, answer = busy
    tab = look(page.format(at=state.at, job=state.job), answer, reduced_motion="reduce")
    tab.wait_for_load_state("networkidle")
    # what is numbered stays as it is: no answer comes any more
    tab.evaluate("() => { window.fetch = () => new Promise(() => {}); }")
    many = tab.evaluate(NUMBER_ALL, CLICKABLE)
    reached: list[str] = []
    for _ in range(many + 20):
        tab.keyboard.press("Tab")
        found = tab.evaluate(FOCUSED)
        if found is None:
            break
        assert found["isMarked"], found["what"]
        assert found["isShown"], found["what"]
        reached.append(found["number"])
    numbers = [int(number) for number in reached if number]
    assert sorted(set(numbers)) == list(range(many))
    assert numbers == sorted(numbers)  # in the order in which they stand


def test_pausing_asks_first_and_escape_is_no(look: Open, busy: tuple[State, Answer]) -> None:
    state, answer = busy
    relay = load_settings(state.config).open_relay()
    tab = look("overview", answer)
    press(tab, "Pause")
    expect(tab.locator("dialog")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.locator("dialog")).to_have_count(0)
    assert tab.evaluate("document.activeElement.textContent") == "Pause"
    assert not relay.control().apply_paused
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")  # from No
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("button", name="Resume")).to_be_visible()
    assert relay.control().apply_paused and relay.control().land_paused
    press(tab, "Resume")
    expect(tab.get_by_role("button", name="Pause")).to_be_visible()
    assert not relay.control().apply_paused


def test_a_search_a_choice_and_details_go_by_keyboard(
    look: Open, busy: tuple[State, Answer]
) -> None:
    _, answer = busy
    tab = look("transactions", answer)
    tab.locator("#key").focus()
    tab.keyboard.type("99")
    tab.keyboard.press("Enter")
    expect(tab.locator("#entries li")).to_have_count(1)
    tab.locator("#entries a").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("#remedies")).to_be_visible()
    tab = look("tables", answer)
    press(tab, "Changes")
    expect(tab.locator("th[aria-sort]")).to_contain_text("Changes")
    tab = look("time", answer)
    tab.locator("#until").focus()
    tab.keyboard.type("20m")
    expect(tab.get_by_role("button", name="Plan it")).to_be_enabled()


def press(tab: Page, name: str) -> None:
    """Press Enter on a button."""
    tab.get_by_role("button", name=name, exact=True).focus()
    tab.keyboard.press("Enter")
