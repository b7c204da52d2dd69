"""Tables of the past into files: whole, verified, gone on with, and never into somebody else's
folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.etl.history.as_of import run_locally
from sluice.etl.history.as_of.aggregations import AggregateResult, Aggregation
from sluice.etl.history.as_of.read_tasks import TimeTravelPlan
from sluice.etl.restore import (
    FilesRequest,
    RestoreError,
    RestoreMismatchError,
    into_files,
    run_files,
)
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.etl.settings.job_sections import Restore
from sluice.etl.tasks.job_kinds import begin, work
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.restore.restoring import archive_of, restore_files

MID, LABEL = 470614793860415502, "b_mid"
TABLES = ("bank.account", "bank.cart", "bank.ledger", "bank.log_nopk")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The recording's archive."""
    url = archive_of("shop", tmp_path_factory.mktemp("files"), 1000)
    return Settings(Upstream("unused"), Relay(url), Downstream("unused"))


def recorded_rows(name: str) -> int:
    tables = {
        label["label"]: label["tables"]
        for label in json.loads((RECORDINGS / "shop/snapshots.json").read_text())
    }
    return int(tables[LABEL][name])


class Killed:
    """Computes so many tables' rows, and is killed then."""

    def __init__(self, portions: int) -> None:
        self.left = 2 * portions

    def __call__(self, plan: TimeTravelPlan, finish: Aggregation) -> Iterator[AggregateResult]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        yield from run_locally(plan, finish)


def test_all_tables_are_restored_and_a_run_that_was_killed_is_gone_on_with(
    shop: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(into_files, "_TABLES_PER_QUERY", 2)
    request = FilesRequest(MID, (), tmp_path / "files")
    with pytest.raises(KeyboardInterrupt):
        restore_files(shop, request, run=Killed(1))
    kept = {path.name: path.stat().st_mtime_ns for path in request.folder.glob("*.parquet")}
    manifest = json.loads((request.folder / "manifest.json").read_text())
    assert len(kept) == 2 and len(manifest["tables"]) == 2 and not manifest["whole"]

    done = restore_files(shop, request)
    assert {table.name: table.rows for table in done.tables} == {
        name: recorded_rows(name) for name in TABLES
    }
    assert done.made == 2
    assert {name: (request.folder / name).stat().st_mtime_ns for name in kept} == kept, (
        "they were not made again"
    )
    for table in done.tables:
        assert pq.read_metadata(request.folder / table.file).num_rows == table.rows
        assert "CREATE TABLE" in (request.folder / f"{table.name}.schema.sql").read_text()
    assert json.loads((request.folder / "manifest.json").read_text())["whole"]

    (request.folder / "bank.account.parquet").write_bytes(b"damaged")
    again = restore_files(shop, request)
    assert again.made == 1 and again.tables == done.tables


def test_airflows_task_plans_without_a_trace_and_makes_the_files_when_it_is_told_to(
    shop: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sluice.etl.tasks.restore.run_files", partial(run_files, compute=run_locally)
    )
    folder = tmp_path / "files"
    shop = replace(shop, restore=Restore(folders=[str(tmp_path)]))
    said = {
        "until": str(MID),
        "tables": ["bank.cart"],
        "folder": str(folder),
        "format": "csv",
        "plan_only": True,
    }
    planned = begin(shop, "restore", said, "a test")
    assert "table    bank.cart" in planned["plan"] and planned["job"] is None
    assert not folder.exists()
    job = begin(shop, "restore", said | {"plan_only": False}, "a test")["job"]
    made = work(shop, "restore", job, "a test")
    assert made | {"seconds": 0} == {
        "until": MID,
        "folder": str(folder),
        "tables": 1,
        "rows": recorded_rows("bank.cart"),
        "made": 1,
        "seconds": 0,
    }
    again = begin(shop, "restore", said | {"plan_only": False}, "a test")["job"]
    assert work(shop, "restore", again, "a test")["made"] == 0, "triggered again it finds them"
    with pytest.raises(RestoreError, match="holds another restore"):
        begin(shop, "restore", said | {"tables": ["bank.ledger"]}, "a test")
    with pytest.raises(RestoreError, match="no table had such a name"):
        begin(
            shop,
            "restore",
            said | {"tables": ["bank.no"], "folder": str(tmp_path / "other")},
            "a test",
        )


@pytest.mark.parametrize(
    "place",
    [
        {"folder": "/tmp/x/../allowed-not/f"},
        {"target": "/etc/sluice/other.toml"},
        {"connection": "spare"},
    ],
)
def test_airflows_form_names_only_places_that_the_settings_allow(
    shop: Settings, place: dict[str, str]
) -> None:
    """Otherwise the right to trigger the DAG sends any password that tasks can read to a server of
    one's choice.
    """
    allowing = replace(
        shop, restore=Restore(targets=["/etc/sluice/copies.toml"], folders=["/tmp/allowed"])
    )
    with pytest.raises(RestoreError, match=r"isn't among \[restore\] (targets|folders)"):
        begin(allowing, "restore", {"until": str(MID), "plan_only": True} | place, "a test")


def test_a_folder_with_something_else_in_it_is_left_alone_unless_that_is_said(
    shop: Settings, tmp_path: Path
) -> None:
    (tmp_path / "somebody's.txt").write_text("else")
    request = FilesRequest(MID, ("bank.account",), tmp_path, "csv")
    with pytest.raises(RestoreError, match="isn't empty"):
        restore_files(shop, request)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["somebody's.txt"]
    restore_files(shop, replace(request, beside=True))
    with pytest.raises(RestoreError, match="holds another restore"):
        restore_files(shop, replace(request, until=MID - 1, beside=True))


def test_rows_that_are_not_what_is_computed_once_more_are_an_error(
    shop: Settings, tmp_path: Path
) -> None:
    calls: list[Aggregation] = []

    def forgetful(plan: TimeTravelPlan, finish: Aggregation) -> Iterator[AggregateResult]:
        calls.append(finish)
        found: Sequence[AggregateResult] = list(run_locally(plan, finish))
        yield from found[:-1] if len(calls) == 1 else found

    request = FilesRequest(MID, ("bank.cart",), tmp_path / "files")
    with pytest.raises(RestoreMismatchError, match=r"bank\.cart: .* were written"):
        restore_files(shop, request, run=forgetful)
    assert not json.loads((request.folder / "manifest.json").read_text())["tables"]
