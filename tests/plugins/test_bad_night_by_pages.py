"""The bad night by pages: what a person clicks, in Chromium, from nothing known to rows that are
there again.

One database stands for TiDB and the replica; Airflow's api-server is a real one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.bad_night import TABLES, Terminal, bad_night, is_repaired
from tests.plugins.api_server import Server, api_server
from tests.plugins.drawing import ARGUMENTS

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

PATIENCE_MS = 120_000


@pytest.fixture
def night(mariadb: Any, tmp_path: Path) -> Iterator[SimpleNamespace]:
    with bad_night(mariadb, tmp_path) as night:
        yield night


@pytest.fixture
def airflow(night: SimpleNamespace, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "airflow"
    folder.mkdir()
    with api_server(folder, night.config) as server:
        yield server


@contextlib.contextmanager
def logged_in(airflow: Server) -> Iterator[Page]:
    """Give Airflow's page of a person who is logged in, in Berlin."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(ARGUMENTS)
        )
        context = browser.new_context(locale="de-DE", timezone_id="Europe/Berlin")
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=airflow.origin)
        context.set_default_timeout(PATIENCE_MS)
        context.add_cookies(
            [{"name": "_token", "value": airflow.tokens["ann"], "url": f"{airflow.snapshot}/"}]
        )
        tab = context.new_page()
        tab.goto(f"{airflow.snapshot}/sluice/overview")
        yield tab
        browser.close()


@pytest.fixture
def tab(airflow: Server) -> Iterator[Page]:
    with logged_in(airflow) as tab:
        yield tab


class Hands:
    """What a person does, counted."""

    def __init__(self) -> None:
        self.clicks = self.typed = 0

    def click(self, place: Locator) -> None:
        self.clicks += 1
        place.click()

    def choose(self, place: Locator, text: str) -> None:
        self.clicks += 2  # open the list, and take one
        place.select_option(label=text)

    def type(self, place: Locator, text: str) -> None:
        self.typed += 1
        place.fill(text)


def test_by_pages_eleven_clicks_two_words_and_two_commands_to_paste(
    night: SimpleNamespace, tab: Page
) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    assert night.state() != night.before
    hands = Hands()
    hands.click(tab.locator("nav").get_by_role("link", name="Transactions"))
    search = tab.locator("#search")
    hands.type(search.locator("#table"), "d.*")
    hands.type(search.locator("#since"), "2h")
    hands.choose(search.locator("#kind"), "Deletes")
    hands.choose(search.locator("#group"), "By table")
    hands.choose(search.locator("#sort"), "Most rows")
    hands.click(search.get_by_role("button", name="Search"))
    groups = tab.locator("#groups tbody tr")
    expect(groups).to_have_count(len(TABLES))
    for name in TABLES:
        expect(groups.filter(has_text=name)).to_contain_text("−60")
    hands.click(tab.get_by_role("link", name="Take all 3 groups back as one …"))
    expect(tab.locator("h1")).to_have_text("Take row changes back")
    facts = tab.locator("#facts")
    expect(facts).to_contain_text("Row changes180")
    expect(facts).to_contain_text("Conflicts0")
    expect(tab.locator("#preview li.come").first).to_contain_text("owner")
    hands.click(tab.locator("#range button", has_text="--dry-run"))
    expect(tab.locator("#notes")).to_contain_text("Copied.")
    with contextlib.closing(Terminal(night.config)) as terminal:
        said, code = terminal.type(_copied(tab))
        assert code == 0 and "180 rows looked at" in said and "no conflicts" in said
        assert night.state() != night.before
        hands.click(tab.locator("#range button", has_text="--apply"))
        tab.wait_for_function(
            "async () => (await navigator.clipboard.readText()).endsWith('--apply')"
        )
        said, code = terminal.type(_copied(tab))
        assert code == 0 and "180 rows are what they were" in said
    is_repaired(night, TABLES)
    assert (hands.clicks, hands.typed) == (11, 2)


def _copied(tab: Page) -> str:
    return str(tab.evaluate("navigator.clipboard.readText()"))
