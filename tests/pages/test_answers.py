"""What pages ask is worked out once for all who look, and nobody waits long for it."""

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest

from sluice.errors import RequestError
from sluice.etl.history.find import SearchQuery
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.pages.job_list import MAX_JOBS_SHOWN, job_document, jobs_document
from sluice.pages.job_timeline import timeline_document
from sluice.pages.past_transactions import found_document
from sluice.pages.protocol import KINDS
from sluice.pages.quality import _POLICY as DATA_DOCS_POLICY
from sluice.pages.response_cache import ResponseCache, StillComputing, answer
from sluice.pages.table_list import history_document
from sluice.plugins.security_headers import _POLICY as PAGES_POLICY
from sluice.relay import RelayLog
from sluice.relay.audit import AuditLog
from sluice.relay.jobs import (
    CANCELLED,
    DONE,
    PAUSE,
    PAUSED,
    JobCounts,
    Jobs,
    Runner,
    TableProgress,
    WriteScope,
)


class Asked:
    """A request with these headers."""

    def __init__(self, **headers):
        self.headers = headers


CSP_DIRECTIVES = {
    *("default-src", "script-src", "style-src", "img-src", "font-src", "connect-src", "frame-src"),
    *("base-uri", "form-action", "frame-ancestors"),
}
"""Content Security Policy Level 3; browsers pass over directives that they do not know."""


@pytest.mark.parametrize("policy", [PAGES_POLICY, DATA_DOCS_POLICY])
def test_a_policy_has_only_directives_that_browsers_know_and_shuts_base_and_forms(policy: str):
    given = dict(directive.split(" ", 1) for directive in policy.split("; "))
    assert given.keys() <= CSP_DIRECTIVES
    assert given["default-src"] == given["base-uri"] == given["form-action"] == "'none'"


def test_twenty_who_ask_at_a_time_have_it_worked_out_once():
    answers, calls, go = ResponseCache(), [], threading.Event()

    def work():
        calls.append(1)
        go.wait()
        return "it"

    async def ask():
        waiting = [asyncio.create_task(answers.get(("what", "shop"), work)) for _ in range(20)]
        await asyncio.sleep(0)
        go.set()
        return {document for document, _ in await asyncio.gather(*waiting)}

    assert asyncio.run(ask()) == {"it"}
    assert len(calls) == 1


def test_an_answer_before_a_change_is_not_given_where_it_may_not_be_old(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("sluice.pages.response_cache._FIRST_WAIT_TIMEOUT_S", 0.05)
    answers, go = ResponseCache(), threading.Event()
    key = "undo", "shop"

    async def ask():
        before = await answers.get(key, lambda: "conflicts", 0.0, is_exact=True)

        def slow():
            go.wait()
            return "as they were"

        with pytest.raises(StillComputing):
            await answers.get(key, slow, 0.0, is_exact=True)
        go.set()
        return before, await _patiently(lambda: answers.get(key, slow, 0.2, is_exact=True))

    assert asyncio.run(ask()) == (("conflicts", 0.0), ("as they were", 0.0))


def test_what_takes_long_is_said_to_be_looked_for_and_the_answer_before_it_is_given_later():
    answers, go = ResponseCache(), threading.Event()

    def slow():
        go.wait()
        return "new"

    async def story():
        with pytest.raises(StillComputing):
            await answers.get(("first", "shop"), slow)
        assert (await answers.get(("known", "shop"), lambda: "old", 1e9))[0] == "old"
        assert (await answers.get(("known", "shop"), slow, -1e9))[0] in ("old",)
        go.set()

    asyncio.run(story())


def test_what_does_not_answer_to_one_pipeline_keeps_the_pages_of_no_other_waiting():
    answers, go = ResponseCache(threads=1), threading.Event()

    async def story():
        with pytest.raises(StillComputing):
            await answers.get(("overview", "shop"), go.wait)
        other = await _patiently(lambda: answers.get(("overview", "search"), lambda: "it"))
        assert (other[0], go.is_set()) == ("it", False)
        go.set()

    asyncio.run(story())


async def _patiently(ask):
    """An answer, however long a busy machine takes for it."""
    while True:
        try:
            return await ask()
        except StillComputing:
            await asyncio.sleep(0.01)


def test_an_order_has_everything_worked_out_anew():
    answers, told = ResponseCache(), iter(["before", "after"])

    async def story():
        assert (await answers.get(("what", "shop"), lambda: next(told), 1e9))[0] == "before"
        answers.forget()
        assert (await answers.get(("what", "shop"), lambda: next(told), 1e9))[0] == "after"

    asyncio.run(story())


def test_an_error_is_told_with_its_hint_and_not_kept():
    def wrong():
        raise RequestError("no such thing", hint="ask for another")

    async def story():
        answered = await answer(Asked(), ("wrong", "shop"), wrong)
        assert answered.status_code == 409
        assert json.loads(answered.body)["hint"] == "ask for another"
        assert (await answer(Asked(), ("wrong", "shop"), dict)).status_code == 200

    asyncio.run(story())


def test_timestamps_keep_all_their_digits_and_what_is_the_same_comes_without_a_body():
    async def story():
        found = await answer(
            Asked(), ("tso", "shop"), lambda: {"ts": [470614793860415502], "ms": 1_790_000_000_000}
        )
        assert json.loads(found.body) == {"ts": ["470614793860415502"], "ms": 1_790_000_000_000}
        again = await answer(
            Asked(**{"if-none-match": found.headers["etag"]}), ("tso", "shop"), dict
        )
        assert again.status_code == 304

    asyncio.run(story())


@pytest.fixture
def pipeline(tmp_path):
    config = tmp_path / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{tmp_path}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    return NamedPipeline("", config)


def test_a_list_of_jobs_holds_the_newest_and_no_tables_and_what_is_over_is_read_once(
    pipeline, monkeypatch
):
    jobs = Jobs.for_pipeline(pipeline.settings.open_relay())
    for number in range(MAX_JOBS_SHOWN + 5):
        job = jobs.create("backfill", {}, WriteScope("there", (f"shop.t{number}",)), "somebody")
        with job.run(Runner("a test")) as run:
            run.set_totals(
                {f"shop.t{n}": TableProgress(JobCounts(), 100, 10, 100) for n in range(50)}
            )
            run.end(DONE)
    found = jobs_document(pipeline)
    assert (len(found["jobs"]), found["more"]) == (MAX_JOBS_SHOWN, 5)
    assert found["jobs"][0]["progress"]["tables"] == 50
    assert "shop.t7" not in json.dumps(found["jobs"][0]["progress"])
    reads = []
    storage = type(pipeline.settings.open_relay().storage)
    read = storage.read
    monkeypatch.setattr(
        storage, "read", lambda self, path: (reads.append(path), read(self, path))[1]
    )
    jobs_document(pipeline)
    assert [path for path in reads if path.startswith("jobs/backfill")] == []


def test_a_job_shows_the_unfinished_tables_first_and_those_that_one_looks_for(pipeline):
    job = Jobs.for_pipeline(pipeline.settings.open_relay()).create(
        "snapshot", {}, WriteScope("", ()), "somebody"
    )
    with job.run(Runner("a test")) as run:
        run.set_totals(
            {f"shop.t{n}": TableProgress(JobCounts(), 100, 10, 100) for n in range(10_000)}
        )
        run.did("shop.t0", JobCounts(100, 100, 10))
        run.end(CANCELLED)
    found = job_document(pipeline, job.id, "")
    assert (len(found["tables"]), found["more"]) == (100, 9_900)
    assert "shop.t0" not in [table["name"] for table in found["tables"]]
    assert [table["name"] for table in job_document(pipeline, job.id, "T777")["tables"]][:1] == [
        "shop.t777"
    ]


def test_what_was_ordered_is_kept_in_its_order_with_what_came_of_it_and_the_oldest_goes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("sluice.relay.audit.MAX_ENTRIES", 3)
    audit = AuditLog(RelayLog.open(f"file://{tmp_path}").storage)
    entries = [audit.begin("ann", "pause-job", f"job-{n}") for n in range(5)]
    audit.end(entries[3], "refused: it is over")
    audit.end(entries[0], "gone already")
    newest = audit.newest(10)
    assert [entry.about for entry in newest] == ["job-4", "job-3", "job-2"]
    assert [entry.outcome for entry in newest] == ["", "refused: it is over", ""]


def test_every_dag_that_a_page_leads_to_is_one_that_it_is_told_of():
    led = set()
    for script in (Path(__file__).parents[2] / "plugins" / "static").glob("*.js"):
        led |= set(re.findall(r'around\.dag\("(\w+)"', script.read_text()))
    assert len(led) > 5
    assert led <= set(KINDS)


def test_a_jobs_time_line_has_each_order_once_and_the_refused_ones(pipeline):
    relay = pipeline.settings.open_relay()
    job = Jobs.for_pipeline(relay).create("backfill", {}, WriteScope("there", ()), "somebody")
    audit = AuditLog(relay.place)
    with job.run(Runner("a test")) as run:
        entry = audit.begin("ann", "pause-job", job.id)
        job.order(PAUSE, "airflow ann")
        audit.end(entry, f"{job.id} pauses")
        run.look()
        run.end(PAUSED)
    audit.end(audit.begin("bob", "resume-job", job.id), "refused: no")
    audit.begin("bob", "resume-job", "backfill-77")
    found = timeline_document(pipeline, job.id)
    assert [(event["what"], event["by"]) for event in found["events"]] == [
        ("planned", "somebody"),
        ("running", str(run._member.runner)),
        ("pausing", "airflow ann"),
        ("paused", str(run._member.runner)),
        ("resume-job", "airflow bob"),
    ]
    assert found["events"][-1]["message"] == "refused: no"
    assert found["spans"][-1] == {
        "state": "paused",
        "from_ms": job.entry().made_ms,
        "to_ms": None,
    }
    json.dumps(found)


def test_before_anything_landed_transactions_and_ddl_are_none_and_no_error(tmp_path):
    config = tmp_path / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{tmp_path}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    pipeline = NamedPipeline("", config)
    found = found_document(pipeline, SearchQuery(0, 1 << 62, limit=50), keys=True)
    assert (found["found"], found["complete"], found["last"]) == ([], True, "0")
    past = history_document(pipeline, "shop.orders", "")
    assert (past["changes"], past["complete"]) == ([], True)
