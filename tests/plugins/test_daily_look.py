"""The daily look: a minute in front of the pages in Chromium, and two commands in a terminal.

How far the replica is, how the last day was, what ran and what changed meanwhile, one table, one
transaction, and what isn't right. One database stands for TiDB and the replica; Airflow's
api-server is a real one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sluice.etl.settings import load_settings
from sluice.relay import RelayLog
from sluice.relay.jobs import DONE, JobCounts, Jobs, Runner, TableProgress, WriteScope
from sluice.relay.measures import LAND, CounterDocument, CounterStore, TableCount, source_of
from sluice.relay.measures.points import LagStep
from sluice.relay.verification_log import TableVerified, Verifications, VerifiedRun
from tests.bad_night import TABLES, Terminal, bad_night
from tests.plugins.api_server import Server, api_server
from tests.plugins.test_bad_night_by_pages import PATIENCE_MS, Hands, logged_in

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

HOUR_MS = 3_600_000


@pytest.fixture
def pipeline(mariadb: Any, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A pipeline of which a day was measured, with a backfill and a verification in it."""
    with bad_night(mariadb, tmp_path) as night:
        settings = load_settings(night.config)
        relay = settings.open_relay()
        measured(relay, settings.downstream_name)
        yield SimpleNamespace(config=night.config, job=copied_again(relay))


def measured(relay: RelayLog, downstream: str) -> None:
    """Write what the tasks would have counted: a day with DDL an hour ago, and a verification."""
    now_ms, last = time.time_ns() // 1_000_000, relay.last()
    assert last is not None
    at = [now_ms - ago for ago in (20 * HOUR_MS, 8 * HOUR_MS, HOUR_MS, 0)]
    ddls = (0, 0, 3, 0)
    counts = {
        name: TableCount(60, 0, 60, last.hi, now_ms, ((now_ms // HOUR_MS, 60),)) for name in TABLES
    }
    store = CounterStore(relay)
    for source in (LAND, source_of(downstream)):
        steps = tuple(
            LagStep(ms, 300_000, 400.0, 90, 9, 9, 0, count if source == LAND else 0)
            for ms, count in zip(at, ddls, strict=True)
        )
        document = CounterDocument(
            {"changes": 360}, at_ts=last.hi, since_ms=at[0], noted_ms=now_ms,
            hour=steps,
        )  # fmt: skip
        store.note(source, document, "a test", 1)
    store.add_tables(source_of(downstream), counts, "a test", 1)
    verified = tuple(
        TableVerified(name, last.hi, now_ms, 60, 600, 0, "upstream", "verify-1") for name in TABLES
    )
    Verifications(relay).note(VerifiedRun("verify-1", last.hi, now_ms, 1.0, "upstream", verified))


def copied_again(relay: RelayLog) -> str:
    """Run a job as a backfill would; return its id."""
    jobs = Jobs.for_pipeline(relay)
    job = jobs.create(
        "backfill", {"tables": ["d.ledger"]}, WriteScope("there", ("d.ledger",)), "ann"
    )
    with job.run(Runner("sluice backfill")) as run:
        run.set_totals({"d.ledger": TableProgress(JobCounts(), 60, 6, 600)})
        run.did("d.ledger", JobCounts(60, 600, 1))
        run.end(DONE, result={"tables": 1})
    return str(job.id)


@pytest.fixture
def airflow(pipeline: SimpleNamespace, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "airflow"
    folder.mkdir()
    with api_server(folder, pipeline.config) as server:
        yield server


@pytest.fixture
def tab(airflow: Server) -> Iterator[Page]:
    with logged_in(airflow) as tab:
        yield tab


def test_a_minute_shows_how_the_day_was_what_ran_and_one_transaction(
    pipeline: SimpleNamespace, tab: Page
) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    hands = Hands()
    facts = tab.locator("#facts")
    expect(facts).to_contain_text("Verified")
    expect(facts).to_contain_text("3 tables equal")
    expect(tab.locator("#lag-chart")).to_be_visible()
    hands.click(tab.locator("#lag").get_by_role("button", name="24 h"))
    expect(tab.locator("#lag").get_by_role("button", name="24 h")).to_have_attribute(
        "aria-pressed", "true"
    )
    marks = tab.locator("#marks")
    hands.click(marks.locator("summary"))
    expect(marks).to_contain_text("3 DDL")
    hands.click(marks.locator("li", has_text="backfill").get_by_role("link"))
    expect(tab.locator("h1")).to_have_text(pipeline.job)
    expect(tab.locator("#timeline")).to_contain_text("running")
    tab.go_back()
    hands.click(marks.locator("summary"))
    hands.click(marks.locator("li", has_text="3 DDL").get_by_role("link"))
    expect(tab.locator("#entries .statement")).to_have_count(len(TABLES))
    expect(tab.locator("#entries")).to_contain_text("CREATE TABLE `ledger`")
    hands.click(tab.locator("nav").get_by_role("link", name="Tables"))
    hands.type(tab.locator("#find"), "ledg")
    expect(tab.locator("#rows tbody tr")).to_have_count(1)
    hands.click(tab.locator("#rows").get_by_role("link", name="d.ledger").first)
    expect(tab.locator("h1")).to_have_text("d.ledger")
    expect(tab.locator("#schema")).to_contain_text("CREATE TABLE")
    hands.click(tab.locator("nav").get_by_role("link", name="Transactions"))
    hands.click(tab.locator("#entries li").first.get_by_role("link").first)
    expect(tab.locator("#rows")).to_contain_text("1000")
    hands.click(tab.locator("nav").get_by_role("link", name="Doctor"))
    expect(tab.locator("main")).to_contain_text("upstream")
    assert (hands.clicks, hands.typed) == (10, 1)


def test_two_commands_show_the_same(pipeline: SimpleNamespace) -> None:
    with contextlib.closing(Terminal(pipeline.config)) as terminal:
        said, code = terminal.type("sluice status")
        assert code == 3 and "lag  " in said and "pumps       unknown" in said  # PD is away
        said, code = terminal.type("sluice doctor")
        assert code == 1 and "FAIL  upstream" in said and "-> see [upstream] pd-urls" in said
        assert "3 tables equal; the oldest result" in said
