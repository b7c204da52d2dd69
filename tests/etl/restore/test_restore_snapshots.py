"""Restores from a snapshot of a real cluster's dump under traffic, to moments behind it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.restore import (
    RestoreError,
    RestoreRequest,
    cancel_restore,
    create_or_resume,
    plan_restore,
    run_restore,
)
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.relay import SKIP, Override, RelayCorruptError, RelayLog
from sluice.relay.archive import Archive, ArchiveSnapshot, snapshot_id
from sluice.relay.jobs import Runner
from tests.etl.copy.copying import RECORDING, definitions
from tests.etl.copy.test_snapshot_source import snapshot_of_dump
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.restore.restoring import INTO, Here, archive_of, restore, settings_of, snapshot_at
from tests.etl.snapshots import differences


@pytest.fixture(scope="module")
def relay_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The recording `bootstrap` landed and archived, with a snapshot of its dump."""
    url = archive_of("bootstrap", tmp_path_factory.mktemp("bootstrap"), 400)
    based(url)
    return url


def based(url: str) -> ArchiveSnapshot:
    dump = DumplingFolder.open(str(RECORDING / "dump-sql"))
    storage = Archive.open(f"{url}/archive").storage
    return snapshot_of_dump(storage, dump, definitions(dump.position).of_users())


@pytest.mark.slow
def test_a_snapshot_and_what_was_committed_after_it_is_the_snapshot(
    mariadb: MariaDBServer, relay_url: str
) -> None:
    settings = settings_of(mariadb, relay_url)
    end = RelayLog.open(relay_url).last()
    assert end is not None
    summary = restore(settings, RestoreRequest(end.hi))
    assert summary.snapshot_rows > 7_900 and summary.changes > 0
    assert (summary.verified.tables, summary.verified.note) == (summary.tables, "")
    assert differences(RECORDING, "z_end", mariadb, INTO) == []


@pytest.mark.slow
def test_the_moment_of_a_snapshot_is_the_snapshot(mariadb: MariaDBServer, relay_url: str) -> None:
    settings = settings_of(mariadb, relay_url)
    position = DumplingFolder.open(str(RECORDING / "dump-sql")).position
    assert plan_restore(settings, RestoreRequest(position)).cost.changes == 0
    restore(settings, RestoreRequest(position))
    assert differences(RECORDING, "dump_sql", mariadb, INTO) == []


def test_of_one_table_only_its_rows_are_loaded(mariadb: MariaDBServer, relay_url: str) -> None:
    settings = settings_of(mariadb, relay_url)
    end = RelayLog.open(relay_url).last()
    assert end is not None
    whole, one = (
        plan_restore(settings, RestoreRequest(end.hi, globs)).cost
        for globs in ((), ("bank.child",))
    )
    assert (
        0 < one.snapshot_rows < whole.snapshot_rows
        and one.changes < whole.changes
        and one.seconds < whole.seconds
    )
    assert restore(settings, RestoreRequest(end.hi, ("bank.child",))).tables == 1


def test_a_table_that_the_youngest_snapshot_lacks_is_restored_from_an_older_one(
    mariadb: MariaDBServer, relay_url: str
) -> None:
    settings = settings_of(mariadb, relay_url)
    snapshots = Archive.open(settings.archive_url).snapshots
    (whole,) = snapshots.all()
    moment = whole.ts + 1
    partial = replace(
        whole,
        id=snapshot_id(moment, "b"),
        ts=moment,
        tables=tuple(t for t in whole.tables if t.full_name != "bank.child"),
    )
    snapshots.publish(partial)
    try:
        assert (
            plan_restore(settings, RestoreRequest(moment + 1, ("bank.account",))).snapshot
            == partial.id
        )
        plan = plan_restore(settings, RestoreRequest(moment + 1, ("bank.child",)))
        assert (plan.snapshot, plan.problems) == (whole.id, ())
    finally:
        snapshots.forget(partial.id)


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ArchiveSnapshot]:
    """The recording `ddl` landed and archived, with a snapshot in the middle.

    Then shop.g2 is renamed and dropped.
    """
    url = archive_of("ddl", tmp_path_factory.mktemp("ddl"))
    snapshots = json.loads((RECORDINGS / "ddl/snapshots.json").read_text())
    ts = next(snapshot["ts"] for snapshot in snapshots if snapshot["label"] == "c_renamed")
    return url, snapshot_at(Settings(Upstream("unused"), Relay(url), Downstream("unused")), ts)


@pytest.mark.slow
def test_of_a_table_that_is_gone_by_the_moment_nothing_is_loaded_and_its_ddl_alone_applied(
    mariadb: MariaDBServer, renamed: tuple[str, ArchiveSnapshot]
) -> None:
    url, snapshot = renamed
    settings, request = settings_of(mariadb, url), RestoreRequest(_end(url))
    table = snapshot.table("shop", "g2")
    assert table is not None and table.rows == 6
    plan = plan_restore(settings, request)
    others = snapshot.rows - table.rows
    assert table.table["id"] in plan.without_rows and plan.cost.snapshot_rows == others
    assert any(note.startswith("shop.g2: made without rows") for note in plan.notes)
    summary = restore(settings, request)
    assert (summary.snapshot_rows, summary.verified.tables) == (others, summary.tables)
    assert differences(RECORDINGS / "ddl", "f_end", mariadb, INTO) == []


def test_an_override_of_ddl_that_left_rows_out_stops_a_restore_that_was_planned_without_it(
    mariadb: MariaDBServer, renamed: tuple[str, ArchiveSnapshot]
) -> None:
    url, _ = renamed
    settings, request = settings_of(mariadb, url), RestoreRequest(_end(url))
    job = create_or_resume(settings, request, "test")
    ddl = int(plan_restore(settings, request).ddls[0].split(" ", 1)[0])
    settings.open_relay().overrides.add(Override(ddl, SKIP))
    try:
        with pytest.raises(
            RestoreError, match=f"overrode the DDL at {ddl} after this restore was planned"
        ):
            run_restore(settings, job, Runner("test"), ways=Here())
        cancel_restore(settings, job, Runner("test"))
        assert plan_restore(settings, request).without_rows == ()
    finally:
        settings.open_relay().overrides.remove(ddl)


def _end(url: str) -> int:
    last = RelayLog.open(url).last()
    assert last is not None
    return last.hi


@pytest.mark.slow
def test_a_damaged_file_of_a_snapshot_stops_it_with_its_place(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    url = archive_of("bootstrap", tmp_path, 400)
    snapshot = based(url)
    table = snapshot.table("bank", "account")
    assert table is not None
    path = tmp_path / "relay" / "archive" / table.files[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    settings = settings_of(mariadb, url)
    with pytest.raises(RelayCorruptError, match=path.name):
        restore(settings, RestoreRequest(snapshot.ts, verify=False))
    path.write_bytes(whole)
    restore(settings, RestoreRequest(snapshot.ts, verify=False))
    assert differences(RECORDING, "dump_sql", mariadb, INTO) == []
