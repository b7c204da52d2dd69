"""The api-server hands requests on to a process that has the pipeline's passwords; it has none."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys

import psutil
import pytest
from fastapi.testclient import TestClient

from sluice.plugins import backends
from sluice.plugins.app import create_app
from sluice.relay import RelayLog
from sluice.relay.audit import AuditLog
from tests.plugins.people import as_person, use_auth_manager
from tests.ports import free_port

ORDER = {"X-Sluice": "1", "Authorization": "Bearer x"}
TOKEN = "0123456789abcdef"


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A function that makes a client as a person, with more lines in [airflow]."""
    config = tmp_path / "sluice.toml"
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    monkeypatch.setattr(backends, "_servers", backends._Servers())
    monkeypatch.setattr(backends, "_children", backends._Children())
    use_auth_manager(monkeypatch)

    def client(more, name="ann"):
        config.write_text(
            f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/log"\n'
            f'[downstream]\nhost = "127.0.0.1"\nport = 1\n[airflow]\n{more}\n'
        )
        as_person(app := create_app(), name)
        return TestClient(app)

    RelayLog.open(f"file://{tmp_path}/log")
    yield client
    for child in psutil.Process().children():
        if "sluice.airflow.agent" in child.cmdline():
            child.kill()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """`sluice pages`, and the connection `pages` that leads to it."""
    port = free_port()
    monkeypatch.setenv("AIRFLOW_CONN_PAGES", f"http://:{TOKEN}@127.0.0.1:{port}")
    monkeypatch.setenv("SLUICE_PAGES_TOKEN", TOKEN)
    (tmp_path / "sluice.toml").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", "pages", "--listen", f"127.0.0.1:{port}"],
        env=os.environ | {"SLUICE_CONFIG": str(tmp_path / "sluice.toml")},
    )
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def answered(client, path):
    """The answer, once it is no longer computed or waited for."""
    for _ in range(600):
        answer = client.get(f"/api/{path}")
        if answer.status_code not in (202, 503):
            break
    return answer


@pytest.mark.slow
def test_a_child_process_answers_and_another_one_after_it_was_killed(pages, monkeypatch):
    client = pages(f'python = "{sys.executable}"')
    assert answered(client, "jobs").json() == {"jobs": [], "more": 0, "actions": []}
    with monkeypatch.context() as patched:  # what reads every authority's certificate, 65 ms
        patched.delattr(ssl, "create_default_context")
        assert client.get("/api/jobs").status_code == 200
    (child,) = [
        each for each in psutil.Process().children() if "sluice.airflow.agent" in each.cmdline()
    ]
    child.kill()
    child.wait(30)
    assert answered(client, "jobs").json()["jobs"] == []


@pytest.mark.slow
def test_a_server_answers_with_the_rights_that_airflow_gives(pages, server, tmp_path):
    client = pages('pages = "pages"')
    assert answered(client, "jobs").json()["jobs"] == []
    assert client.post("/api/tasks/pause", json={}, headers=ORDER).status_code == 200
    (action,) = AuditLog(RelayLog.open(f"file://{tmp_path}/log").place).newest(10)
    assert (action.by, action.what) == ("ann", "pause")
    narrow = pages('pages = "pages"', "vic")
    refused = narrow.post("/api/tasks/resume", json={}, headers=ORDER)
    assert (refused.status_code, "sluice_operate" in refused.json()["detail"]) == (403, True)
    blind = pages('pages = "pages"', "val")
    assert blind.get("/api/transactions/7").status_code == 403
    assert blind.get("/api/transactions?key=7").status_code == 403
    assert AuditLog(RelayLog.open(f"file://{tmp_path}/log").place, reads=True).newest(10) == []
    tags = client.get("/api/jobs").headers
    same = client.get("/api/jobs", headers={"If-None-Match": tags["etag"]})
    assert (same.status_code, same.content) == (304, b"")


@pytest.mark.slow
def test_nobody_asks_the_server_without_its_token(pages, server, monkeypatch):
    client = pages('pages = "pages"')
    assert answered(client, "jobs").status_code == 200
    wrong = os.environ["AIRFLOW_CONN_PAGES"].replace(TOKEN, "another-token-0000")
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", wrong)
    refused = pages('pages = "wrong"').get("/api/jobs")
    assert refused.status_code == 503 and "refuses the token" in refused.json()["error"]


def test_a_server_that_is_away_is_named(pages, monkeypatch):
    port = free_port()
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", f"http://:{TOKEN}@127.0.0.1:{port}")
    refused = pages('pages = "away"').get("/api/jobs")
    assert refused.status_code == 503 and f"127.0.0.1:{port}" in refused.json()["error"]
    missing = pages('pages = "nothing"').get("/api/jobs")
    assert missing.status_code in (409, 503) and "nothing" in missing.json()["error"]


def test_a_side_with_another_protocol_is_named(pages, monkeypatch):
    client = pages("")
    monkeypatch.setattr("sluice.pages.protocol.PROTOCOL", 2)
    refused = client.get("/api/jobs")
    assert refused.status_code == 400 and "don't fit" in refused.json()["detail"]
