"""A picture of each page in each state, at the widths of a phone, a laptop and a wide screen.

Where `SLUICE_TEST_PICTURES` names a folder, the pictures stay there for a person to look at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, TimeoutError, expect

from tests.etl.mariadb_fixture import MariaDBServer
from tests.plugins.drawing import Answer, Open, chromium, fits, grave_faults
from tests.plugins.page_states import STATES, State, standing

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

FITTING_TEXT = Path(__file__).with_name("fitting_text.js").read_text()
WEIGHT = """() => {
  const loaded = performance.getEntries().filter(({ decodedBodySize }) => decodedBodySize);
  const by_name = Object.fromEntries(loaded.map((each) => [each.name, each.decodedBodySize]));
  return Object.values(by_name).reduce((sum, size) => sum + size, 0);
}"""
EMPTY_HINT = re.compile(r"Hint:\s*(\.|$)", re.MULTILINE)
STILL_ASKED = re.compile("Asking:|not answered yet")
MAX_WEIGHT = 300_000
"""Bytes of a page with all that it loads."""
LOOKS: dict[str, dict[str, Any]] = {
    "phone": {"viewport": {"width": 360, "height": 800}, "color_scheme": "light"},
    "laptop-dark": {
        "viewport": {"width": 1280, "height": 900},
        "color_scheme": "dark",
        "locale": "de-DE",
        "timezone_id": "Europe/Berlin",
    },
    "wide": {"viewport": {"width": 2560, "height": 1300}, "color_scheme": "light"},
}
PAGES = {
    "overview": "overview",
    "day": "overview?span=day",
    "tables": "tables",
    "table": f"tables?table={quote('d.account')}",
    "transactions": "transactions",
    "groups": "transactions?group=minute%2Ctable&sort=size",
    "incidents": "transactions?group=unusual",
    "undo": "transactions?undo=1&since=before%3A{at}&until={last}&table=d.account",
    "transaction": "transactions?at={at}",
    "jobs": "jobs",
    "job": "jobs?job={job}",
    "time": "time",
    "quality": "quality",
    "doctor": "doctor",
}
ALL = frozenset(PAGES)
SHOWN = {
    "empty": ALL - {"day", "undo", "job"},
    "busy": ALL,
    "refused": {"overview", "day", "tables", "table", "transaction", "jobs", "time", "quality",
                "doctor"},
    "unreachable": ALL - {"day", "groups", "incidents", "job"},
    "viewer": {"overview", "transaction", "undo", "jobs", "job", "time", "quality"},
    "crowded": {"overview", "day", "tables", "table", "jobs", "job", "time"},
    "unusable": {"overview", "jobs"},
}  # fmt: skip
"""The pages that look different in a state."""
CASES = [(state, page) for state in STATES for page in PAGES if page in SHOWN[state]]


@pytest.fixture(scope="module")
def look() -> Iterator[Open]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    mariadb_server: MariaDBServer,
) -> Iterator[tuple[State, Answer]]:
    """The state that the parameter names, and what answers in it."""
    with standing(request.param, mariadb_server, tmp_path_factory) as found:
        yield found


def settled(tab: Page) -> None:
    """Wait until a page shows what it was asked to, and asks for nothing more at once."""
    expect(tab.locator("main")).not_to_have_attribute("aria-busy", "true")
    with suppress(TimeoutError):  # it looks back step by step
        tab.wait_for_load_state("networkidle", timeout=15_000)
    expect(tab.locator("main")).not_to_contain_text(STILL_ASKED, timeout=30_000)


@pytest.mark.ci_cases("refused")
@pytest.mark.parametrize(("made", "page"), CASES, indirect=["made"], ids=lambda one: str(one))
def test_a_page_fits_is_light_and_can_be_read(
    look: Open,
    made: tuple[State, Answer],
    page: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    state, answer = made
    pictures = Path(os.environ.get("SLUICE_TEST_PICTURES", tmp_path))
    name = request.node.callspec.id
    wrong: dict[str, list[Any]] = {}
    for way, options in LOOKS.items():
        address = PAGES[page].format(at=state.at, last=state.last, job=state.job)
        tab = look(address, answer, refused=state.is_refused, reduced_motion="reduce", **options)
        settled(tab)
        tab.screenshot(path=pictures / f"{name}-{way}.png", full_page=True)
        found = tab.evaluate(FITTING_TEXT)
        if way != "wide":  # which has the phone's colours, and the laptop's elements
            found += grave_faults(tab)
        if EMPTY_HINT.search(tab.locator("main").inner_text()):
            found.append("a hint says nothing")
        if not fits(tab):
            found.append("it is wider than the window")
        if not 10_000 < (weight := tab.evaluate(WEIGHT)) < MAX_WEIGHT:
            found.append(f"it loads {weight:,} bytes")
        if found:
            wrong[way] = found
        tab.context.close()
    assert wrong == {}
