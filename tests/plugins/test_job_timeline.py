"""A job's page: its states as a picture, and all of it in words, in Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.job_list import job_document
from sluice.pages.job_timeline import timeline_document
from sluice.relay import RelayLog
from sluice.relay.audit import AuditLog
from sluice.relay.jobs import (
    DONE,
    PAUSE,
    PAUSED,
    JobCounts,
    Jobs,
    Runner,
    TableProgress,
    WriteScope,
)
from tests.plugins.drawing import Open, chromium, fits, grave_faults

TRAP = "<img src=x onerror=\"window.caught='message'\">"


@pytest.fixture(scope="module")
def look() -> Iterator[Open]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the pages get of a job that was paused, failed, and is done."""
    folder = tmp_path_factory.mktemp("pipeline")
    config = folder / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{folder}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    relay = RelayLog.open(f"file://{folder}/relay")
    job = Jobs.for_pipeline(relay).create(
        "backfill", {"tables": ["shop.*"]}, WriteScope("", ("shop.orders",)), "airflow uma"
    )
    audit = AuditLog(relay.place)
    with job.run(Runner("sluice backfill")) as run:
        run.set_totals({"shop.orders": TableProgress(JobCounts(), 2000, 8, 100)})
        run.did("shop.orders", JobCounts(30, 600, 3))
        job.order(PAUSE, "airflow ann")
        run.look()
        run.end(PAUSED)
    audit.end(audit.begin("bob", "resume-job", job.id), "refused: not now")
    with pytest.raises(OSError), job.run(Runner("sluice backfill")) as run:
        run.set_totals({"shop.orders": TableProgress(JobCounts(30, 600, 3), 2000, 8, 100)})
        raise OSError(TRAP)
    with job.run(Runner("sluice backfill")) as run:
        run.set_totals({"shop.orders": TableProgress(JobCounts(30, 600, 3), 2000, 8, 100)})
        run.did("shop.orders", JobCounts(70, 1400, 5))
        run.end(DONE)
    pipeline = NamedPipeline("", config)
    past = timeline_document(pipeline, job.id)
    for each in past["events"]:  # as if it had taken hours
        each["at_ms"] = _slowly(each["at_ms"], job.spec.made_ms)
    for each in past["spans"]:
        each["from_ms"] = _slowly(each["from_ms"], job.spec.made_ms)
        each["to_ms"] = each["to_ms"] and _slowly(each["to_ms"], job.spec.made_ms)
    for each in past["points"]:
        each["at_ms"] = _slowly(each["at_ms"], job.spec.made_ms)
    one = job_document(pipeline, job.id, "")
    return {
        "jobs": {"jobs": [one["job"]], "more": 0, "actions": []},
        f"jobs/{job.id}": one,
        f"jobs/{job.id}/timeline": past,
    }


def _slowly(at_ms: int, begun_ms: int) -> int:
    return begun_ms + 20_000 * (at_ms - begun_ms)


def test_the_list_leads_to_a_jobs_page_with_its_states_in_a_picture(
    look: Open, answers: dict[str, Any]
) -> None:
    tab = look("jobs", answers)
    tab.get_by_role("link", name="backfill").click()
    expect(tab.locator("h1")).to_have_text("backfill")
    kinds = [span.get_attribute("class") for span in tab.locator("#band rect").all()]
    assert kinds == [
        "span ", "span busy", "span warn", "span warn", "span busy", "span bad", "span busy",
    ]  # fmt: skip
    titles = tab.locator("#band title").all_text_contents()
    assert sum("airflow ann: pausing" in title for title in titles) == 1
    assert sum("airflow bob: ordered to resume" in title for title in titles) == 1
    assert sum(title.startswith("failed, ") for title in titles) == 1
    spoken = tab.locator("#band").get_attribute("aria-label")
    assert spoken is not None and "paused" in spoken and "running" in spoken
    expect(tab.locator("#done-chart")).to_have_attribute(
        "aria-label", "Done: now 100 %, at most 100 %"
    )
    rows = tab.locator("#happened tbody tr")
    expect(rows).to_have_count(9)
    expect(rows.first).to_contain_text("done")
    expect(rows.last).to_contain_text("airflow uma")
    expect(tab.locator("#happened")).to_contain_text("refused: not now")
    expect(tab.locator("#happened")).to_contain_text(TRAP)
    assert tab.evaluate("window.caught") is None
    tab.locator("#figures summary").click()
    expect(tab.locator("#figures tbody tr").last).to_contain_text("100 %")
    tab.get_by_role("link", name="Jobs").last.click()
    expect(tab.locator("h1")).to_have_text("Jobs")


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark"), (2560, "light")])
def test_a_jobs_page_fits_and_has_no_serious_fault(
    look: Open, answers: dict[str, Any], width: int, scheme: str
) -> None:
    tab = look(
        "jobs?job=backfill",
        answers,
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
    )
    expect(tab.locator("#band")).to_be_visible()
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    assert fits(tab)
    if pictures := os.environ.get("SLUICE_TEST_PICTURES"):
        tab.screenshot(path=Path(pictures) / f"job-{width}-{scheme}.png", full_page=True)
    assert grave_faults(tab) == []
