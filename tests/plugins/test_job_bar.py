"""The bar of a job whose total isn't known doesn't look like one that is done, in Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from sluice.devstack.repository import REPOSITORY
from tests.plugins.test_pages_in_airflow import ARGUMENTS

PAGE = """<!doctype html><link rel="stylesheet" href="/style.css"><main id="here"></main>
<script type="module">
import { draw } from "/jobs.js";
import { h } from "/dom.js";
const around = { dags: {}, dag: () => null };
const details = new Map(Object.entries(%s));
const found = { jobs: %s, more: 0, actions: [], details };
document.getElementById("here").append(h("div", {}, draw(found, around)));
document.body.dataset.drawn = "yes";
</script>"""
PROGRESS = {
    "bytes": 0, "bytes_in_all": 0, "chunks": 0, "chunks_in_all": 0, "rows": 0, "rows_in_all": 0,
    "percent": 100, "rows_per_s": 0, "bytes_per_s": 0, "left_s": None, "doing": [], "tables": 1,
    "tables_done": 0,
}  # fmt: skip


def job(name: str, state: str = "running", **progress: object) -> dict[str, Any]:
    return {
        "id": name, "state": state, "touches": "", "orders": [], "message": "", "hint": "",
        "by": "ann", "made_ms": 1, "since_ms": 1, "run": None, "runner": "",
        "progress": PROGRESS | progress,
    }  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A tab of somebody who wants no motion, on a server of the pages' files."""
    folder = str(REPOSITORY / "plugins" / "static")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(ARGUMENTS)
        )
        tab = browser.new_page(
            base_url=f"http://127.0.0.1:{server.server_address[1]}", reduced_motion="reduce"
        )
        yield tab
        browser.close()
    server.shutdown()


def drawn(page: Page, job: dict[str, Any], detail: dict[str, Any] | None = None) -> float:
    """Draw a job; return how much of its bar is filled."""
    body = PAGE % (json.dumps({job["id"]: detail} if detail else {}), json.dumps([job]))
    page.unroute_all()
    page.route("**/drawn", lambda route: route.fulfill(body=body, content_type="text/html"))
    page.goto("/drawn")
    page.wait_for_selector("body[data-drawn]")
    whole, filled = page.locator(".bar").bounding_box(), page.locator(".bar > div").bounding_box()
    assert whole is not None and filled is not None
    return filled["width"] / whole["width"]


def test_a_running_job_of_unknown_size_is_a_piece_in_the_middle_and_says_so(page: Page) -> None:
    assert drawn(page, job("backfill", bytes=5_000_000)) == pytest.approx(0.25, abs=0.01)
    bar = page.get_by_role("progressbar")
    assert bar.get_attribute("aria-valuenow") is None
    assert bar.get_attribute("aria-valuetext") == "of an unknown total"
    text = page.locator(".measures").inner_text()
    assert "of an unknown total" in text and "%" not in text


def test_a_known_size_fills_the_bar_by_its_share_and_a_paused_unknown_one_not_at_all(
    page: Page,
) -> None:
    known = {"bytes": 30, "bytes_in_all": 100, "percent": 30}
    assert drawn(page, job("backfill", **known)) == pytest.approx(0.3, abs=0.01)
    assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "30"
    assert drawn(page, job("backfill", "paused")) == 0


def test_a_table_of_unknown_size_has_no_percentage_until_the_job_is_done(page: Page) -> None:
    table = {"name": "bank.ledger", "percent": 100, "rows": 7, "bytes": 9, "bytes_in_all": 0}
    detail = {"job": "backfill", "asked": {}, "tables": [table | {"chunks_in_all": 0}], "more": 0}
    drawn(page, job("backfill"), detail)
    cell = page.locator("tbody td").nth(1)
    assert cell.text_content() == "–"
    table["bytes_in_all"] = 9
    drawn(page, job("backfill"), detail | {"tables": [table]})
    assert cell.text_content() == "100 %"
