"""Tables are compared on a page's order: by a run of the DAG, for users who may trigger it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from sluice.pages.app import create_app
from sluice.pages.protocol import CALLER_HEADER, Caller
from sluice.relay import RelayLog
from sluice.relay.audit import AuditLog

CONFIG = """
[upstream]
pd-urls = "http://127.0.0.1:1"
[relay]
url = "{0}"
[downstream]
host = "127.0.0.1"
port = 1
"""


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RelayLog:
    url = (tmp_path / "relay").as_uri()
    config = tmp_path / "sluice.toml"
    config.write_text(CONFIG.format(url))
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    return RelayLog.open(url)


def ordered(tables: Any, may: tuple[str, ...] = ("verify",)) -> tuple[int, Any]:
    caller = Caller("ann", "", rows=False, may=may)
    with TestClient(create_app(), headers={CALLER_HEADER: caller.to_header()}) as client:
        found = client.post("/verify", json={"tables": tables})
    return found.status_code, found.json()


def test_a_comparison_is_a_run_of_its_dag_with_these_tables_and_is_recorded(
    relay: RelayLog,
) -> None:
    status, document = ordered(["d.account", "d.led*"])
    assert status == 200, document
    assert document["run"]["dag_id"].endswith("verify")
    assert document["run"]["conf"] == {"tables": ["d.account", "d.led*"]}
    (entry,) = AuditLog(relay.place).newest(9)
    assert (entry.by, entry.what, entry.about) == ("ann", "verify", "d.account, d.led*")


def test_without_the_right_to_trigger_verify_nothing_is_compared(relay: RelayLog) -> None:
    assert ordered(["d.account"], may=("operate",))[0] == 403
    assert AuditLog(relay.place).newest(9) == []


@pytest.mark.parametrize("tables", [[], "d.a", [""], [7], None, ["d.a"] * 1001])
def test_what_names_no_tables_is_refused(relay: RelayLog, tables: Any) -> None:
    assert ordered(tables)[0] == 422
