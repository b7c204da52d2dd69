"""Take pictures of the pages for the documentation.

The whole stack runs with live traffic in a folder of its own, a snapshot and a backfill, then
Chromium. `make screenshots`, or `python docs/_site/screenshots.py [MINUTES]`; MINUTES is how long
the traffic lasts before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sluice.devstack.control import AirflowClient, ClusterControl  # noqa: E402
from sluice.devstack.fresh_stack import fresh_stack, wait_pipeline  # noqa: E402
from sluice.devstack.launch import password_file  # noqa: E402
from sluice.devstack.launch.airflow import USER, airflow_url  # noqa: E402
from sluice.devstack.stack import Stack  # noqa: E402
from sluice.devstack.state import StackError  # noqa: E402

PICTURES = ROOT / "docs" / "pages"
SHOWN = (
    ("jobs", "light"),
    ("overview", "light"),
    ("overview", "dark"),
    ("tables", "light"),
    ("quality", "dark"),
    ("time", "light"),
)
"""What the documents show of the pages' tabs, and in which colours."""
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
TRAFFIC = {
    "rate": 40,
    "transactions": None,
    "rows": 2,
    "tables": 6,
    "database": "shop",
    "updates": 0.3,
    "deletes": 0.1,
}
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
WITH_CHART = WIDE | {"height": 1130}
"""So high that the overview's chart is whole."""
_ATTEMPTS = 10
_TOO_SMALL = """
[[expect]]
expectation = "expect_table_row_count_to_be_between"
max_value = 100
severity = "warn"
why = "an archive of a hundred"
"""
"""An expectation that isn't met, so that the page Quality shows one."""


def main(minutes: float) -> None:
    """Start everything, wait, take the pictures, stop everything."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-pictures-") as home:
        stack = Stack(Path(home) / "stack")
        with fresh_stack(stack, None, print):
            site = stack.site()
            airflow = AirflowClient(stack.home, site.ports["airflow"])
            wait_pipeline(stack, airflow)
            ClusterControl(site.ports["cluster-control"]).workload(dict(TRAFFIC))
            time.sleep(60 * minutes / 2)
            propose = [
                sys.executable,
                "-m",
                "sluice.cli",
                "quality",
                "init",
                "--config",
                str(site.config),
            ]
            while subprocess.run(propose, cwd=ROOT).returncode:  # nothing is landed or applied yet
                time.sleep(5)
            _trigger(airflow, "snapshot", {"source": "downstream"})
            _trigger(airflow, "verify", {})
            _trigger(airflow, "quality", {})
            time.sleep(60 * minutes / 4)
            with (Path(site.config).parent / "quality" / "shop.txn.toml").open("a") as suite:
                suite.write(_TOO_SMALL)
            _trigger(airflow, "quality", {})
            time.sleep(60 * minutes / 4)
            # slow enough to be under way in the picture of the jobs, which is the first
            slowly = {"tables": ["shop.*"], "mode": "replace", "rows_per_second": 100}
            _trigger(airflow, "backfill", slowly)
            time.sleep(40)
            with _chromium() as browser:
                _pictures(browser, stack.home, airflow_url(site.ports["airflow"]))


def _trigger(airflow: AirflowClient, dag: str, conf: dict[str, Any]) -> None:
    path, run = f"/dags/sluice_{dag}/dagRuns", {"logical_date": None, "conf": conf}
    for attempt in range(_ATTEMPTS):
        try:
            airflow._call("POST", path, run)
            return
        except StackError:  # Airflow's SQLite is locked on a machine in heavy use
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(5)


@contextmanager
def _chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield browser
        browser.close()


def _pictures(browser: Browser, home: Path, url: str) -> None:
    password = json.loads(password_file(home).read_text())[USER]
    for tab, scheme in SHOWN:
        size = WITH_CHART if tab == "overview" else WIDE
        page = _logged_in(browser, url, password, color_scheme=scheme, viewport=size)
        page.goto(f"{url}/plugin/sluice/sluice/{tab}")
        page.frame_locator("iframe").locator("main h1").wait_for(timeout=120_000)
        _take(page, f"{tab}-{scheme}")
    _transaction(_logged_in(browser, url, password, color_scheme="light", viewport=WIDE), url)
    page = _logged_in(browser, url, password, color_scheme="light", viewport=PHONE)
    page.goto(f"{url}/sluice/overview")
    page.locator("main h1").wait_for(timeout=120_000)
    _take(page, "overview-phone")


def _transaction(page: Page, url: str) -> None:
    """One that is applied, with the SQL that takes it back."""
    page.goto(f"{url}/sluice/transactions?kind=delete")
    page.locator("#entries li a").last.click()
    page.get_by_role("button", name="Show the SQL").click()
    page.locator("#undo .held").first.wait_for()
    _take(page, "transaction-light")


def _logged_in(browser: Browser, url: str, password: str, **options: Any) -> Page:
    context = browser.new_context(**options)
    context.set_default_timeout(120_000)
    answer = context.request.post(
        f"{url}/auth/token", data={"username": USER, "password": password}
    )
    context.add_cookies(
        [{"name": "_token", "value": answer.json()["access_token"], "url": f"{url}/"}]
    )
    return context.new_page()


def _take(page: Page, name: str) -> None:
    page.wait_for_timeout(4000)
    page.screenshot(path=PICTURES / f"{name}.png")
    print(f"docs/pages/{name}.png", flush=True)
    page.context.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 6.0)
