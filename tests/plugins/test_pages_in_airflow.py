"""Every route asks Airflow who comes.

Orders are Airflow's roles' and come from the pages alone; who ordered what is kept. And the pages
as a person sees them: in Chromium, in Airflow's frame, behind a prefix.

In one module, so that the api-server is started once.
"""

import contextlib
import json
import re
import time
from urllib.parse import quote

import pytest
from playwright.sync_api import expect, sync_playwright

from sluice.etl.settings import load_settings
from sluice.relay import RelayLog
from sluice.relay.jobs import CANCELLING, PAUSED, PAUSING, RUNNING, Jobs, WriteScope
from sluice.tidb.table_name import full_name
from tests.plugins.pages_server import PREFIX
from tests.plugins.pipeline_with_traps import MANY, TRAP

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
PAGES = ("overview", "tables", "transactions", "jobs", "quality", "time", "doctor")
PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)
EXAMPLES = {
    "name": "overview.js",
    "what": "pause",
    "rest": "no/such/page",
    "commit_ts": "1",
    "path": "index.html",
}


def routes():
    """(method, path) of everything that the application answers, with something in the place of
    each parameter.
    """
    from sluice.pages.app import create_app as create_pipelines_side
    from sluice.plugins.app import create_app

    both = (("", create_app().routes), ("/api", create_pipelines_side().routes))
    for prefix, found in both:
        for route in found:
            path = re.sub(r"{(\w+)(:\w+)?}", lambda match: EXAMPLES.get(match[1], "x"), route.path)
            yield from ((method, f"{prefix}{path}") for method in sorted(route.methods))


@pytest.fixture(scope="module")
def all_routes():
    return list(routes())


def test_anonymous_gets_401_on_every_route_also_on_those_that_are_not_there(pages, all_routes):
    beyond = [
        ("GET", path)
        for path in ("", "/", "/docs", "/redoc", "/openapi.json", "/static/", "/static/../app.py")
    ]
    assert len(all_routes) > 15
    for method, path in [*all_routes, *beyond]:
        body = b"{no json" if method in ("POST", "PUT", "PATCH") else None
        status, _, _ = pages.call(
            method, f"/sluice{path}", body, {"Content-Type": "application/json"}
        )
        # what is "/sluice" itself is Airflow's: it leads to the pages, or shows Airflow's own page
        assert status in ((401,) if path else (200, 307, 401)), (method, path, status)


def test_a_forged_token_is_as_good_as_none(pages):
    head, payload, _ = pages.tokens["ann"].split(".")
    for token in ("x", f"{head}.{payload}.AAAA", f"{pages.tokens['ann']}x"):
        for headers in ({"Cookie": f"_token={token}"}, {"Authorization": f"Bearer {token}"}):
            status, _, _ = pages.call("GET", "/sluice/api/jobs", None, headers)
            assert status in (401, 403)


def test_who_is_logged_in_sees_the_pages_by_cookie_and_by_bearer_token(pages):
    for headers in (pages.cookie("vic"), {"Authorization": f"Bearer {pages.tokens['vic']}"}):
        asked = (
            "static/shell.js",
            "api/jobs",
            "api/context",
            "api/lag",
            "api/tables",
            "api/transactions",
            "api/quality",
        )
        for path in (f"/{each}" for each in (*PAGES, *asked)):
            assert pages.call("GET", f"/sluice{path}", None, headers)[0] in (200, 202), path


def test_a_pipeline_whose_dag_a_person_may_not_see_is_closed_to_that_person(pages, all_routes):
    open_to_all = {"/", "/api/context", *(f"/{name}" for name in PAGES), "/static/overview.js"}
    for method, path in all_routes:
        if method == "GET" and path not in open_to_all:
            status, body, _ = pages.call("GET", f"/sluice{path}", None, pages.cookie("rex"))
            assert status in (403, 404, 422), (path, status, body)
    assert pages.call("GET", "/sluice/api/context", None, pages.cookie("rex"))[0] == 403
    assert pages.call("GET", "/sluice/api/tables", None, pages.cookie("rex"))[0] == 403


def test_what_rows_hold_needs_a_right_of_its_own(pages):
    one = f"transactions/{pages.pipeline.inserted}"
    for path in (
        one,
        f"{one}/undo",
        f"{one}/value?position=0&column=id&side=new",
        "quality/docs/-/index.html",
    ):
        status, body, _ = pages.call("GET", f"/sluice/api/{path}", None, pages.cookie("val"))
        assert (status, b"Sluice row values" in body) == (403, True), path
    for search in ("where=id%3D1", "key=1"):
        assert (
            pages.call("GET", f"/sluice/api/transactions?{search}", None, pages.cookie("val"))[0]
            == 403
        )
    found = pages.get("transactions", "val")["found"]
    assert found and not any(
        rows["keys"] for each in found for rows in each["tables"] if isinstance(rows, dict)
    )
    assert any(
        rows["keys"]
        for each in pages.get("transactions")["found"]
        for rows in each["tables"]
        if isinstance(rows, dict)
    )
    assert pages.get(f"{one}/state", "val")["override"] is None
    assert not any(
        failure["observed"]
        for suite in pages.get("quality", "val")["suites"]
        for failure in suite["failures"]
    )


def test_no_browser_keeps_what_rows_hold(pages):
    for path in ("transactions", f"transactions/{pages.pipeline.inserted}"):
        pages.get(path)
        _, _, headers = pages.call("GET", f"/sluice/api/{path}", None, pages.cookie("vic"))
        assert headers["cache-control"] == "no-store", path


def test_a_person_without_a_login_is_shown_the_way_to_it(pages):
    status, body, _ = pages.call("GET", "/sluice/overview", None, {"Accept": "text/html"})
    assert status == 401 and b"Airflow's login" in body.replace(b"&#x27;", b"'")


def test_every_answer_forbids_scripts_in_the_page_and_frames_of_others(pages):
    for path in ("/overview", "/static/style.css", "/api/jobs", "/no/such/page"):
        _, _, headers = pages.call("GET", f"/sluice{path}", None, pages.cookie("vic"))
        policy = headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy
            and "script-src 'self'" in policy
            and "unsafe" not in policy
        )
        assert "frame-ancestors 'self'" in policy and "base-uri 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_what_has_not_changed_comes_without_a_body(pages):
    _, _, headers = pages.call("GET", "/sluice/static/style.css", None, pages.cookie("vic"))
    again = pages.cookie("vic") | {"If-None-Match": headers["etag"]}
    assert pages.call("GET", "/sluice/static/style.css", None, again)[:2] == (304, b"")


def test_files_beside_the_pages_are_not_served(pages):
    for name in ("..%2fapp.py", "%2e%2e%2fapp.py", ".hidden", "%2fetc%2fpasswd", "nothing.js"):
        assert pages.call("GET", f"/sluice/static/{name}", None, pages.cookie("ann"))[0] == 404


def test_who_may_not_trigger_the_dag_gets_no_order_through(pages):
    job = pages.pipeline.failed
    before = job.entry()
    transaction = f"transactions/{pages.pipeline.inserted}"
    overrides = (
        f"{transaction}/skip-txn",
        f"{transaction}/skip-ddl",
        f"{transaction}/remove-override",
    )
    for path in (f"jobs/{job.id}/cancel", "tasks/pause", *overrides):
        status, said = pages.order(path, "vic")
        assert (status, "operate" in said["detail"]) == (403, True)
    status, said = pages.order("time/restore", "vic", json.dumps({"until": "2026-01-01"}).encode())
    assert (status, "restore" in said["detail"]) == (403, True)
    assert job.entry() == before
    assert pages.get(f"{transaction}/state")["override"] is None
    assert not any(dag["may"] for dag in pages.get("context", "vic")["dags"].values())
    assert all(dag["may"] for dag in pages.get("context", "uma")["dags"].values())


@pytest.mark.parametrize(
    "change",
    [
        {"X_Sluice": None},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Type": None},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": None, "Sec_Fetch_Site": None},
        {"Origin": "https://elsewhere.example", "Sec_Fetch_Site": None},
    ],
    ids=str,
)
def test_an_order_that_another_site_could_send_is_refused(pages, change):
    before = pages.pipeline.failed.entry()
    status, _ = pages.order(f"jobs/{pages.pipeline.failed.id}/cancel", "ann", **change)
    assert status in (403, 415)
    assert pages.pipeline.failed.entry() == before
    assert pages.order(f"transactions/{pages.pipeline.inserted}/skip-txn", "ann", **change)[0] in (
        403,
        415,
    )
    assert pages.get(f"transactions/{pages.pipeline.inserted}/state")["override"] is None


def test_an_order_by_link_is_none(pages):
    path = f"/sluice/api/jobs/{pages.pipeline.failed.id}/cancel"
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        assert pages.call(method, path, None, pages.cookie("ann") | {"X-Sluice": "1"})[0] == 404


def test_an_order_of_brackets_alone_is_refused(pages):
    status, said = pages.order(f"jobs/{pages.pipeline.failed.id}/cancel", "ann", b"[" * 60_000)
    assert (status, said["detail"]) == (422, "An order is one JSON object.")


def test_an_order_that_is_no_json_object_or_too_large_is_refused(pages):
    path = f"jobs/{pages.pipeline.failed.id}/cancel"
    assert pages.order(path, "ann", b"[1]")[0] == 422
    assert pages.order(path, "ann", b"{")[0] == 422
    assert pages.order(path, "ann", b'{"x": "%s"}' % (b"x" * 70_000))[0] == 413


def test_a_running_job_is_paused_goes_on_and_is_given_up_and_it_is_kept_who_said_so(pages):
    job = pages.pipeline.running
    with job.run(pages.pipeline.runner):
        assert pages.order(f"jobs/{job.id}/pause", "uma")[0] == 200
        assert (job.entry().state, job.entry().by) == (PAUSING, "airflow uma")
        assert pages.order(f"jobs/{job.id}/resume", "ann")[0] == 200
        assert job.entry().state == RUNNING
        assert pages.order(f"jobs/{job.id}/cancel", "ann")[0] == 200
        assert job.entry().state == CANCELLING
        status, said = pages.order(f"jobs/{job.id}/pause", "uma")
        assert status == 409 and "cancelled" in said["error"]
    kept = [
        (action["by"], action["what"], action["about"]) for action in pages.get("jobs")["actions"]
    ]
    wanted = [
        ("uma", "pause-job"),
        ("ann", "cancel-job"),
        ("ann", "resume-job"),
        ("uma", "pause-job"),
    ]
    assert kept[:4] == [(who, what, job.id) for who, what in wanted]
    assert pages.get("jobs")["actions"][0]["outcome"].startswith("refused: ")


def test_a_job_whose_run_airflow_has_removed_is_resumed_and_given_up_by_its_id(look, pages):
    jobs = Jobs.for_pipeline(load_settings(pages.pipeline.config).open_relay())
    job = jobs.create(
        "snapshot", {"source": "tidb"}, WriteScope("nowhere", ()), "airflow manual__of_last_year"
    )
    with job.run(pages.pipeline.runner) as run:
        run.end(PAUSED)
    status, said = pages.order(f"jobs/{job.id}/resume", "vic")
    assert (status, "operate" in said["detail"]) == (403, True)
    tab = look("/sluice/jobs")
    for order, state in (("Resume", PAUSED), ("Cancel", CANCELLING)):
        tab.locator(f"#job-{job.id}").get_by_role("button", name=order).click()
        tab.locator("dialog button.main").click() if order == "Cancel" else None
        expect(tab.locator("#notes p.good").last).to_contain_text("manual__")
        assert job.entry().state == state
        run = _run_of_last_note(tab, pages, "sluice_snapshot")
        assert run["conf"] == {"job": job.id} and run["triggering_user_name"] == "ann"
        tab.locator("#notes button").last.click()
    assert [action["about"] for action in pages.get("jobs")["actions"]][:2] == [job.id, job.id]


def _run_of_last_note(tab, pages, dag_id):
    """The DAG run that the last note names, as Airflow has it."""
    text = tab.locator("#notes p.good").last.inner_text()
    run_id = re.search(r"\((.+)\)", text)[1]
    _, body, _ = pages.call(
        "GET",
        f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}",
        None,
        {"Authorization": f"Bearer {pages.tokens['ann']}"},
    )
    return json.loads(body)


def test_a_restore_is_planned_by_a_run_of_its_dag_with_the_values_of_the_form(pages):
    order = {"until": "2026-11-22T12:00:00+01:00", "tables": ["shop.orders"], "plan_only": True}
    status, said = pages.order("time/restore", "uma", json.dumps(order).encode())
    assert (status, said["run"]["dag_id"]) == (200, "sluice_restore"), said
    body = json.dumps({"logical_date": None, "conf": said["run"]["conf"]}).encode()
    headers = {"Content-Type": "application/json"}
    for who, wanted in (("vic", 403), ("uma", 200)):  # as the page does, and Airflow decides
        status, body_of_run, _ = pages.call(
            "POST", "/api/v2/dags/sluice_restore/dagRuns", body, headers | pages.cookie(who)
        )
        assert status == wanted
    run = json.loads(body_of_run)
    assert run["triggering_user_name"] == "uma"
    assert {name: run["conf"][name] for name in order} == order
    status, said = pages.order("time/restore", "uma", b'{"until": "tomorrow"}')
    assert status == 409 and "tomorrow" in said["error"]


def test_pausing_and_resuming_replication_is_what_the_command_does(pages):
    relay = RelayLog.open(load_settings(pages.pipeline.config).relay.url)
    assert pages.order("tasks/pause", "uma", b'{"which": "apply"}')[0] == 200
    assert (relay.control().land_paused, relay.control().apply_paused) == (False, True)
    assert pages.order("tasks/resume", "uma")[0] == 200
    assert not relay.control().apply_paused
    assert pages.order("tasks/pause", "uma", b'{"which": "everything"}')[0] == 422


def test_who_does_not_answer_is_named_and_the_page_is_there_all_the_same(pages):
    _until(lambda: {"upstream", "downstream"} <= pages.get("overview")["errors"].keys())
    found = pages.get("overview")
    assert any("PD" in text for text in found["held_back"])
    assert (found["downstream"]["state"], found["landing"]["at_ts"]) == (
        "unknown",
        str(pages.pipeline.updated),
    )


def test_a_skip_keeps_the_persons_name_and_reason_and_is_withdrawn_only_if_its_use_is_known(
    pages,
):
    at = pages.pipeline.updated
    assert (
        pages.order(
            f"transactions/{at}/skip-txn", "uma", json.dumps({"why": TRAP.format("why")}).encode()
        )[0]
        == 200
    )
    override = pages.get(f"transactions/{at}/state")["override"]
    assert (override["by"], override["why"], override["action"]) == (
        "airflow uma",
        TRAP.format("why"),
        "skip",
    )
    status, said = pages.order(f"transactions/{at}/skip-txn", "ann")
    assert status == 409 and "override" in said["error"]
    status, said = pages.order(f"transactions/{at}/remove-override", "ann")
    assert status == 503 and said["transient"], (
        "the downstream, which knows whether it was used, is away"
    )
    assert pages.get(f"transactions/{at}/state")["override"] is not None
    load_settings(pages.pipeline.config).open_relay().overrides.remove(at)
    entries = [
        (action["by"], action["what"], action["about"])
        for action in pages.get("jobs")["actions"]
        if action["about"] == str(at)
    ]
    assert entries == [
        ("ann", "remove-override", str(at)),
        ("ann", "skip-txn", str(at)),
        ("uma", "skip-txn", str(at)),
    ]
    assert pages.order(f"transactions/{at}/skip-txn", "ann", b'{"why": 7}')[0] == 422


def test_tables_are_listed_though_the_downstream_is_away_and_that_is_named(pages):
    found = pages.get("tables")
    assert [table["name"] for table in found["tables"]] == [full_name("d", TRAP.format("name"))]
    assert pages.get("tables?find=nothing+such")["count"] == 0
    _until(lambda: "127.0.0.1:1" in pages.get("tables")["errors"].get("downstream", ""))
    for wrong in ("sort=no", "page=-1", "only=x", "page=x", "down=2"):
        assert pages.call("GET", f"/sluice/api/tables?{wrong}", None, pages.cookie("vic"))[0] == 422


def _until(true):
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_what_cannot_be_searched_for_is_said_with_the_hint(pages):
    for wrong in ("where=id+%3D", "since=tomorrow", "until=7", "where=nothing(1)"):
        status, body, _ = pages.call(
            "GET", f"/sluice/api/transactions?{wrong}", None, pages.cookie("vic")
        )
        assert status == 409 and json.loads(body)["hint"], wrong
    assert pages.get("transactions?where=no_such_column+%3D+1")["unknown"] == ["no_such_column"]
    for path in ("7", "1" * 19, f"{pages.pipeline.inserted}/value?position=9&column=v&side=new"):
        assert (
            pages.call("GET", f"/sluice/api/transactions/{path}", None, pages.cookie("vic"))[0]
            == 409
        ), path
    assert pages.call("GET", "/sluice/api/transactions/1x", None, pages.cookie("vic"))[0] == 422


def test_a_value_comes_whole_as_a_file_that_no_browser_takes_for_a_page(pages):
    path = f"/sluice/api/transactions/{pages.pipeline.inserted}/value?position=1&column=v&side=new"
    status, body, headers = pages.call("GET", path, None, pages.cookie("vic"))
    assert (status, body) == (200, b"x" * MANY)
    assert headers["content-disposition"].startswith("attachment") and headers[
        "content-type"
    ].startswith("text/plain")
    column = quote(TRAP.format("column"))
    value = f"{pages.pipeline.inserted}/value?position=0&column={column}&side=new"
    path = f"/sluice/api/transactions/{value}"
    status, body, headers = pages.call("GET", path, None, pages.cookie("vic"))
    assert body.decode() == "abc\u202etxt.exe" and "<" not in headers["content-disposition"]


def test_the_data_docs_are_served_without_scripts_and_nothing_beside_them(pages):
    docs = "/sluice/api/quality/docs/-"
    for path in ("", "index.html", "a/page.html"):
        status, body, headers = pages.call("GET", f"{docs}/{path}", None, pages.cookie("vic"))
        assert status == 200 and b"<p>" in body
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script" not in headers["content-security-policy"]
    for path in (
        "../1790000000000-0123456789ab.json",
        "..%2f..%2fmeasures",
        "%2fetc%2fpasswd",
        "a",
        "no.html",
        "a%00b",
    ):
        assert pages.call("GET", f"{docs}/{path}", None, pages.cookie("vic"))[0] == 404, path


# In Chromium


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(ARGUMENTS)
        )
        yield browser
        browser.close()


@pytest.fixture
def look(pages, chromium):
    """Opens a tab as somebody.

    When the test is over, nothing may have gone wrong in any of them.
    """
    wrong = []
    with contextlib.ExitStack() as closing:

        def open_tab(path, who="ann", **options):
            context = closing.enter_context(chromium.new_context(**options))
            context.set_default_timeout(PATIENCE_MS)
            context.add_cookies(
                [{"name": "_token", "value": pages.tokens[who], "url": f"{pages.snapshot}/"}]
            )
            tab = context.new_page()
            tab.on("pageerror", lambda error: wrong.append(str(error)))
            tab.on("dialog", lambda dialog: wrong.append(dialog.message))
            tab.on(
                "console", lambda said: wrong.append(said.text) if said.type == "error" else None
            )
            tab.goto(f"{pages.snapshot}{path}")
            return tab

        yield open_tab
    assert [
        text for text in wrong if "/airflow/sluice/" in text or "Content Security" in text
    ] == []


def drawn(place):
    """Wait until the page in a tab or frame is there; its main part."""
    expect(place.locator("main h1")).to_be_visible()
    return place.locator("main")


@pytest.mark.parametrize(
    "page", [*PAGES, "overview?span=week", "transactions?group=minute%2Ctable&sort=size"]
)
def test_a_page_is_drawn_at_any_width_in_light_and_dark_and_axe_finds_no_serious_fault(
    look, pages, page
):
    from axe_playwright_python.sync_playwright import Axe

    tab = look("/sluice/static/style.css", bypass_csp=True)  # for axe's own script
    for scheme, width in (("light", 360), ("dark", 1280), ("light", 2560)):
        tab.emulate_media(color_scheme=scheme)
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(f"{pages.snapshot}/sluice/{page}")
        drawn(tab)
        name = page.partition("?")[0].capitalize()
        expect(tab.locator("nav a[aria-current]")).to_have_text(name)
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
        assert tab.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        ), width
        found = Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
        grave = [
            (each["id"], node["html"], node["failureSummary"])
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
        assert grave == [], width


def test_groups_lead_to_what_takes_them_back_and_reading_that_is_a_right(look, pages):
    tab = look("/sluice/transactions?group=table&kind=insert")
    rows = tab.locator("#groups tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("window.caught='name'")
    address = rows.get_by_role("link", name="Take back").get_attribute("href")
    assert "undo=1" in address
    tab = look(f"/sluice/transactions?{address.partition('?')[2]}")
    expect(tab.locator("#facts")).to_contain_text("Transactions2")
    expect(tab.locator("#preview")).to_contain_text("id=1")
    expect(tab.locator("main")).to_contain_text("could not be tried on the replica")
    command = tab.locator("#range button", has_text="--dry-run").inner_text()
    assert "sluice undo --since before:" in command and "--kind insert --dry-run" in command
    assert tab.evaluate("window.caught") is None
    for who, status in (("val", 403), ("vic", 200)):
        path = f"/sluice/api/undo?{address.partition('?')[2]}"
        while (found := pages.call("GET", path, None, pages.cookie(who)))[0] == 202:
            time.sleep(0.1)
        assert found[0] == status, found
    assert pages.call("GET", "/sluice/api/undo", None, pages.cookie("vic"))[0] == 422


def test_the_doctor_s_page_names_what_fails_first(look):
    tab = look("/sluice/doctor")
    checks = drawn(tab).locator(".checks li")
    expect(checks.first).to_contain_text("fails")
    expect(tab.locator("main")).to_contain_text("see [upstream] pd-urls")


def test_names_and_values_of_attackers_are_shown_as_they_are_and_do_nothing(look, pages):
    tab = look("/sluice/jobs")
    card = tab.locator(f"#job-{pages.pipeline.failed.id}")
    for trap in ("message", "way out", "by", "table"):
        expect(card).to_contain_text(f"window.caught='{trap}'")
    card.locator("summary").click()
    expect(card).to_contain_text("window.caught='asked'")
    assert tab.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert tab.evaluate("window.caught") is None


def test_no_name_value_statement_or_finding_is_taken_for_markup(look, pages):
    name, pipeline = full_name("d", TRAP.format("name")), pages.pipeline
    shown = {
        "tables": ("name",),
        f"tables?table={quote(name)}": ("name", "problem", "statement", "column"),
        "transactions": ("name", "statement"),
        f"transactions?table={quote(name)}&key={quote(TRAP.format('key'))}": (),
        f"transactions?at={pipeline.inserted}": ("name", "column", "value"),
        f"transactions?where={quote(TRAP.format('where'))}": (),
        "quality": ("name", "expectation", "about", "observed", "message"),
    }
    for path, traps in shown.items():
        tab = look(f"/sluice/{path}")
        main = tab.locator("main")
        for trap in traps:
            expect(main).to_contain_text(f"window.caught='{trap}'")
        expect(main).not_to_contain_text("Looking …")
        assert tab.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert tab.evaluate("window.caught") is None


def test_null_is_not_the_empty_text_differences_are_marked_and_nothing_stays_unseen(look, pages):
    tab = look(f"/sluice/transactions?at={pages.pipeline.updated}")
    row = tab.locator("tr.differs")
    expect(row.locator("td.gone")).to_have_text("NULL")
    expect(row.locator("td.come")).to_have_text("''")
    tab = look(f"/sluice/transactions?at={pages.pipeline.inserted}")
    expect(tab.locator("main .unseen").first).to_have_text("U+202E")
    assert "\u202e" not in tab.locator("main").inner_text()


def test_a_long_value_is_cut_and_shown_whole_when_one_asks(look, pages):
    tab = look(f"/sluice/transactions?at={pages.pipeline.inserted}")
    tab.get_by_role("button", name="all 1,000,000 characters").click()
    expect(tab.locator("pre.whole")).to_contain_text("x" * 5000)
    assert tab.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


def test_a_search_is_kept_in_the_address_and_finds_by_key(look, pages):
    tab = look("/sluice/transactions")
    tab.locator("#search #key").fill("2")
    tab.locator("#search #table").fill("d.*")
    tab.get_by_role("button", name="Search").click()
    expect(tab.locator("#entries li")).to_have_count(1)
    assert "key=2" in tab.url
    tab.locator("#entries a").click()
    expect(tab.locator("#remedies")).to_be_visible()
    tab.go_back()
    expect(tab.locator("#entries li")).to_have_count(1)
    tab.locator("#search #key").fill("77")
    tab.get_by_role("button", name="Search").click()
    expect(tab.locator("#foot")).to_contain_text("That is all there is")
    expect(tab.locator("#entries li")).to_have_count(0)


def test_the_hint_of_a_transaction_is_the_roles(look, pages):
    for who, buttons in (("vic", 0), ("uma", 1)):
        tab = look(f"/sluice/transactions?at={pages.pipeline.inserted}", who)
        expect(tab.locator("#remedies")).to_contain_text("Whether it is applied can't be known")
        expect(tab.get_by_role("button", name="Skip this transaction")).to_have_count(buttons)


def test_the_data_docs_stand_in_a_frame_and_none_of_their_scripts_runs(chromium, pages):
    with chromium.new_context() as context:  # the browser says aloud what it does not run
        context.set_default_timeout(PATIENCE_MS)
        context.add_cookies(
            [{"name": "_token", "value": pages.tokens["ann"], "url": f"{pages.snapshot}/"}]
        )
        tab = context.new_page()
        tab.goto(f"{pages.snapshot}/sluice/quality")
        tab.get_by_role("link", name="Data Docs").click()
        frame = tab.frame_locator("#docs")
        frame.get_by_role("link", name="a page").click()
        expect(frame.locator("p")).to_have_text("A page")
        assert tab.evaluate("document.querySelector('#docs').contentWindow.caught") is None


def test_the_pages_stand_in_airflows_frame_and_lead_out_of_it_to_a_dag(look, pages):
    tab = look("/plugin/sluice")
    frame = tab.frame_locator("iframe")
    drawn(frame)
    frame.locator("nav a", has_text="Jobs").click()
    expect(frame.locator("main h1")).to_have_text("Jobs")
    tab.wait_for_url(f"**{PREFIX}/plugin/sluice/**/jobs")
    frame.locator("main a", has_text="Restore").first.click()
    tab.wait_for_url(f"**{PREFIX}/dags/sluice_restore**")


def test_the_pages_follow_airflows_choice_of_light_and_dark(look):
    tab = look("/plugin/sluice", color_scheme="light")
    frame = tab.frame_locator("iframe")
    drawn(frame)
    expect(frame.locator("html")).to_have_attribute("data-theme", "light")
    tab.evaluate("localStorage.setItem('theme', 'dark')")
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")


def test_what_is_new_appears_by_itself_and_what_is_open_stays_open(look, pages):
    tab = look("/sluice/jobs")
    drawn(tab)
    tab.locator(f"#job-{pages.pipeline.failed.id} summary").click()
    jobs = Jobs(RelayLog.open(load_settings(pages.pipeline.config).relay.url).storage)
    new = jobs.create("snapshot", {}, WriteScope("elsewhere", ("a.b",)), "somebody")
    expect(tab.locator(f"#job-{new.id}")).to_be_visible()
    expect(tab.locator(f"#job-{pages.pipeline.failed.id} details")).to_have_attribute("open", "")


def test_who_may_only_look_sees_no_button_that_changes_something(look, pages):
    for who, buttons in (("vic", 0), ("uma", 1)):
        tab = look("/sluice/jobs", who)
        drawn(tab)
        expect(tab.locator(f"#job-{pages.pipeline.failed.id} button.danger")).to_have_count(buttons)


def test_a_job_is_given_up_by_its_button_after_a_question(look, pages):
    jobs = Jobs(RelayLog.open(load_settings(pages.pipeline.config).relay.url).storage)
    job = jobs.create("reapply", {}, WriteScope("elsewhere", ("a.c",)), "somebody")
    tab = look("/sluice/jobs")
    tab.locator(f"#job-{job.id} button.danger").click()
    tab.locator("dialog button.main").click()
    expect(tab.locator("#notes")).to_contain_text(job.id)
    assert job.entry().by == "airflow ann"


def test_a_login_that_has_ended_is_said_and_what_was_there_stays(look, pages):
    tab = look("/sluice/jobs")
    drawn(tab)
    tab.context.clear_cookies()
    expect(tab.locator("#failed")).to_contain_text("logged out")
    expect(tab.locator(f"#job-{pages.pipeline.failed.id}")).to_be_visible()


def test_the_role_op_sees_every_page_and_may_order_what_the_role_user_may(pages):
    for path in (*PAGES, "api/jobs", "api/tables", "api/quality"):
        assert pages.call("GET", f"/sluice/{path.lstrip('/')}", None, pages.cookie("oli"))[0] in (
            200,
            202,
        ), path
    assert pages.get("context", "oli")["dags"] == pages.get("context", "uma")["dags"]
    status, said = pages.order("time/restore", "oli", b'{"until": "tomorrow"}')
    assert status == 409 and "tomorrow" in said["error"], (
        "it is understood, and not refused for the role"
    )
