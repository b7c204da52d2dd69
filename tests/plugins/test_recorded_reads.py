"""Who reads what rows hold is on record before they see it."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sluice.pages import actions
from sluice.plugins.app import create_app
from sluice.relay import RelayLog
from sluice.relay.audit import AuditLog
from tests.plugins.people import as_person, use_auth_manager

AT = "470614793860415502"


@pytest.fixture
def reads(tmp_path, monkeypatch):
    """A function that gets a path as a person, and one that lists the reads on record."""
    file = tmp_path / "sluice.toml"
    file.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/log"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    use_auth_manager(monkeypatch)
    monkeypatch.setattr(actions, "_reads", {})
    app: FastAPI = create_app()
    client = TestClient(app)

    def get(path, name="ann"):
        as_person(app, name)
        return client.get(f"/api/{path}").status_code

    def recorded():
        log = AuditLog(RelayLog.open(f"file://{tmp_path}/log").place, reads=True)
        return [(each.by, each.what, each.about) for each in log.newest(100)]

    return get, recorded


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        (f"transactions/{AT}", ("ann", "read", AT)),
        (f"transactions/{AT}/undo", ("ann", "read-undo", AT)),
        (f"transactions/{AT}/value?position=0&column=id&side=new", ("ann", "read-value", AT)),
        ("transactions?key=17", ("ann", "search", "17")),
        ("transactions?where=id%3D17", ("ann", "search", "id=17")),
        ("quality/docs/-/index.html", ("ann", "read-quality", "-")),
    ],
)
def test_a_read_is_recorded_once_however_often_the_page_asks_again(reads, path, entry):
    get, recorded = reads
    for _ in range(3):
        get(path)
    assert recorded() == [entry]
    get(path, "bob")
    assert recorded() == [("bob", *entry[1:]), entry]


def test_who_may_not_see_rows_is_refused_and_not_recorded(reads):
    get, recorded = reads
    for path in (f"transactions/{AT}", f"transactions/{AT}/undo", "transactions?key=17"):
        assert get(path, "val") == 403
    assert recorded() == []


def test_looking_at_what_holds_no_values_is_no_read(reads):
    get, recorded = reads
    get("transactions", "val")
    get(f"transactions/{AT}/state")
    assert recorded() == []


def test_a_read_is_recorded_again_after_ten_minutes(reads, monkeypatch):
    get, recorded = reads
    monkeypatch.setattr(actions, "_SAME_READ_S", 0.0)
    get(f"transactions/{AT}")
    get(f"transactions/{AT}")
    assert len(recorded()) == 2


def test_nothing_is_shown_where_it_can_not_be_recorded(reads, monkeypatch):
    get, _ = reads

    def refuse(self, *_):
        raise PermissionError(13, "no")

    monkeypatch.setattr(AuditLog, "begin", refuse)
    assert get(f"transactions/{AT}") == 503
