"""Draw the pages in Chromium from their files, with the answers that a test gives them.

No server is asked, so any browser setting can be tried in a second. `tests.plugins.page_states`
has the pages' own application answer instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Route,
    expect,
    sync_playwright,
)

from sluice.devstack.repository import REPOSITORY
from sluice.plugins import html_shell

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
ADDRESS = "http://pages.example/sluice/"
CONTEXT = {"user": "ann", "pipeline": "", "pipelines": [{"name": "", "title": "shop"}], "dags": {}}
STATIC = REPOSITORY / "plugins" / "static"
DAG = {"is_paused": False, "is_stale": False}
PATIENCE_MS = 20_000
TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

Answers = Mapping[str, Any]
"""JSON by the path below `api/`."""
Answer = Callable[[str, Any], tuple[int, bytes]]
"""Called with the path and the query below `api/`, and with what is ordered, None if it is only
asked: the status, and JSON.
"""
Open = Callable[..., Page]
"""Called with a page's address and `Answers` or an `Answer`, and with options of a browser's
context. `refused`: answers may have a status of errors, which Chromium logs.
"""


@contextmanager
def chromium() -> Iterator[Open]:
    """Give a function that opens a page of these answers; nothing may go wrong in any."""
    wrong: list[str] = []
    with sync_playwright() as playwright, ExitStack() as closing:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(ARGUMENTS)
        )
        closing.callback(browser.close)

        def opened(
            path: str, answers: Answers | Answer, *, refused: bool = False, **options: Any
        ) -> Page:
            page = _context(browser, answers, options)
            page.on("pageerror", lambda error: wrong.append(str(error)))

            def said(message: ConsoleMessage) -> None:
                is_refusal = message.text.startswith("Failed to load resource")
                if message.type == "error" and not (refused and is_refusal):
                    wrong.append(message.text)

            page.on("console", said)
            page.goto(ADDRESS + path)
            expect(page.locator("main h1")).to_be_visible(timeout=PATIENCE_MS)
            return page

        yield opened
    assert wrong == []


def _given(answers: Answers) -> Answer:
    every = {"context": CONTEXT, **answers}

    def answer(path: str, _: Any) -> tuple[int, bytes]:
        found = every.get(path.partition("?")[0])
        return (404 if found is None else 200), json.dumps(found).encode()

    return answer


def _context(browser: Browser, answers: Answers | Answer, options: Mapping[str, Any]) -> Page:
    context = browser.new_context(**options)
    ask = answers if callable(answers) else _given(answers)

    def answer(route: Route) -> None:
        url = urlsplit(route.request.url)
        path = url.path.removeprefix("/sluice/")
        folder, _, name = path.partition("/")
        if folder == "static":
            kind = TYPES[name.rpartition(".")[2]]
            route.fulfill(body=(STATIC / name).read_bytes(), content_type=kind)
        elif folder == "api":
            status, body = ask(f"{name}?{url.query}", route.request.post_data_json)
            route.fulfill(status=status, body=body, content_type="application/json")
        elif path.startswith("/api/v2/dags/"):  # Airflow's own
            route.fulfill(body=json.dumps(DAG), content_type="application/json")
        else:
            page = next(page for page in html_shell.PAGES if page.name == path)
            route.fulfill(body=html_shell.page_html(page), content_type="text/html")

    context.route("**/*", answer)
    return context.new_page()


def grave_faults(page: Page) -> list[Any]:
    """Return what axe calls serious or critical on a page."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        (each["id"], node["html"], node["failureSummary"])
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def fits(page: Page) -> bool:
    """Return whether a page needs no scrolling sideways."""
    width = "document.documentElement"
    return bool(page.evaluate(f"{width}.scrollWidth <= {width}.clientWidth"))
