"""docs/reference/json.md has exactly the members that the documents have."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy.backfill.run import BackfillSummary
from sluice.etl.copy.bootstrap_summary import BootstrapSummary
from sluice.etl.history.archive.checking import CheckSummary
from sluice.etl.history.archive.compaction import CompactionSummary
from sluice.etl.history.archive.report import ArchiveSummary
from sluice.etl.history.find.results import FoundDdl, FoundGroup, FoundTransaction
from sluice.etl.history.retain.run import RetainSummary
from sluice.etl.history.retain.status import ArchiveStatus
from sluice.etl.history.snapshots.request import SnapshotJobSummary
from sluice.etl.history.undo.check import DryRun
from sluice.etl.operate.overview import Overview
from sluice.etl.restore.drill.job import DrillSummary
from sluice.etl.restore.plan import RestoreSummary
from sluice.etl.verify.reapply.request import ReplaySummary
from sluice.etl.verify.result import VerifySummary
from sluice.relay.jobs import Jobs, WriteScope
from sluice.relay.storage import LocalStorage
from tests.cli.test_pipelines_command import CONFIG
from tests.cli.typed import typed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md"
CLASSES: dict[str, tuple[Any, set[str]]] = {
    "top --once": (Overview, {"error"}),
    "bootstrap": (BootstrapSummary, set()),
    "restore": (RestoreSummary, set()),
    "drill": (DrillSummary, set()),
    "reapply": (ReplaySummary, set()),
    "snapshot make": (SnapshotJobSummary, set()),
    "find, transaction": (FoundTransaction, {"time"}),
    "find, ddl": (FoundDdl, {"time"}),
    "find, group": (FoundGroup, set()),
    "undo --dry-run": (DryRun, {"preview"}),
    "archive run": (ArchiveSummary, set()),
    "archive compact": (CompactionSummary, set()),
    "archive retain": (RetainSummary, set()),
    "archive check": (CheckSummary, set()),
    "archive status": (ArchiveStatus, set()),
}
"""The class of each document, and members beside its fields."""


def documented() -> dict[str, set[str]]:
    """The members of each document on the page; of several in a row each has the same."""
    found = {}
    for names, text in re.findall(r"^\| (`.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE):
        words = re.findall(r"`([^`]+)`", names)
        name = ", ".join(words)
        found[name] = set(re.findall(r"`([a-z_]+)`", text))
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_a_document_s_members_are_on_the_page(name: str) -> None:
    kind, more = CLASSES[name]
    members = {each.name for each in fields(kind)} | more
    assert members <= documented()[name], members - documented()[name]


@pytest.mark.slow
def test_documents_that_are_made_otherwise_are_on_the_page_too(tmp_path: Path) -> None:
    (config := tmp_path / "sluice.toml").write_text(CONFIG.format(folder=tmp_path, name="shop"))
    page = documented()
    status = json.loads(typed("status", "--json", "--config", config).stdout)
    assert status.keys() <= page["status"], status.keys() - page["status"]
    listed = json.loads(typed("pipelines", "--json", env={"SLUICE_CONFIG": str(config)}).stdout)
    assert listed.keys() | listed["pipelines"][0].keys() <= page["pipelines"]
    job = Jobs(LocalStorage(tmp_path, tmp_path.as_uri())).create(
        "backfill", {}, WriteScope("db:3306"), "ann"
    )
    shown = job.status().to_json()
    assert shown.keys() | shown["progress"].keys() == page["jobs show, jobs list"] - {"null"}
    assert BackfillSummary(job.id, "done", "replace", {}, 0.0).to_json().keys() == page["backfill"]
    assert VerifySummary(job.id, "done").to_json().keys() == page["verify"]


def test_every_command_with_a_document_of_its_own_is_on_the_page() -> None:
    table = (PAGE.with_name("commands.md")).read_text().partition("## JSON")[2]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", table.partition("## Names")[0], re.MULTILINE)
    commands = {word for names, _ in rows for word in re.findall(r"`([^`]+)`", names)}
    checks = {"doctor", "init", "capture --check", "takeover --check", "upgrade --check"}
    text = PAGE.read_text()
    assert checks < commands
    missing = {name for name in commands if f"`{name}`" not in text and name not in checks}
    assert missing - {"jobs resume", "pumps list", "drainers list", "archive files"} == set()
