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

from tests.bad_night import ROWS, TABLES, Terminal, bad_night
from tests.plugins.api_server import Server, api_server
from tests.plugins.drawing import ARGUMENTS

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

PATIENCE_MS = 120_000


@pytest.fixture
def night(mariadb: Any, tmp_path: Path) -> Iterator[SimpleNamespace]:
    with bad_night(mariadb, tmp_path, application=True) as night:
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


def test_by_pages_four_clicks_and_a_command_to_paste(night: SimpleNamespace, tab: Page) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    assert night.state() != night.before
    hands = Hands()
    hands.click(tab.get_by_role("link", name="Find an accident"))
    worst = tab.locator(".incident").first
    expect(worst.locator("h2")).to_have_text("180 rows deleted in 3 tables")
    for name in TABLES:
        expect(worst.locator(".bursts li").filter(has_text=name)).to_contain_text("−60")
    ledger = worst.locator(".bursts li").filter(has_text="d.ledger")
    expect(ledger).to_contain_text("9 transactions of 4 to 7 rows. No other delete of this table")
    account = worst.locator(".bursts li").filter(has_text="d.account")
    expect(account).to_contain_text("51 other transactions, of at most 1 row: 28 of them in the")
    hands.click(worst.get_by_role("link", name="Take all back …"))
    expect(tab.locator("h1")).to_have_text("Take row changes back")
    facts = tab.locator("#facts")
    expect(facts).to_contain_text("Row changes180")
    expect(facts).to_contain_text("Conflicts0")
    expect(tab.locator("#preview li.come").first).to_contain_text("owner")
    hands.click(tab.locator("#range button", has_text="--apply"))
    expect(tab.locator("#notes")).to_contain_text("Copied.")
    with contextlib.closing(Terminal(night.config)) as terminal:
        said, code = terminal.type(_copied(tab))
        assert code == 0 and "180 rows are what they were" in said
    hands.click(tab.get_by_role("button", name="Look again"))
    expect(tab.locator("#is-back")).to_contain_text("All 180 rows are as they were")
    expect(tab.locator("#range")).not_to_contain_text("sluice undo")
    now = night.state()
    assert all(night.before[name] == now[name] for name in ("d.ledger", "d.visit"))
    assert night.before["d.account"] <= now["d.account"]
    assert now["d.account"].total() == ROWS + 1 + 51, "what the application did stays"
    assert (hands.clicks, hands.typed) == (4, 0)


def _copied(tab: Page) -> str:
    return str(tab.evaluate("navigator.clipboard.readText()"))
