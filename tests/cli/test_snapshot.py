"""`sluice snapshot`: snapshots are listed, checked and forgotten, and a damaged file is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluice.cli import group
from sluice.etl.copy.snapshot_files import write_files
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    Pin,
    Pins,
    SnapshotTable,
    snapshot_id,
)
from tests.etl.copy.test_snapshot_source import LETTERS, letters

TS = 470_000_000_000_000_000


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sluice.toml"
    path.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.open(f"file://{tmp_path}/relay/archive")


def made(archive: Archive, ts: int) -> ArchiveSnapshot:
    name = snapshot_id(ts, "a")
    archive.snapshots.begin(name, PendingSnapshot("snapshot"))
    files = tuple(write_files(archive.storage, f"snapshots/{name}/7", LETTERS, [letters(0, 50)]))
    held = SnapshotTable(LETTERS.schema_name, LETTERS.name, LETTERS.to_json(), files)
    return archive.snapshots.publish(
        ArchiveSnapshot(name, ts, 1, 7, 1_700_000_000_000, "a test", (), (held,))
    )


def sluice(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        group, ["snapshot", *arguments, "--config", str(config)], standalone_mode=False
    )


def test_snapshots_are_listed_with_what_they_hold_and_what_is_being_made(
    config: Path, archive: Archive
) -> None:
    assert "there are no snapshots" in sluice(config, "list").output
    snapshot = made(archive, TS)
    archive.snapshots.begin(snapshot_id(TS + 1, "b"), PendingSnapshot("snapshot-2"))
    said = sluice(config, "list").output
    assert snapshot.id in said
    assert "1 table, 50 rows" in said
    assert f"{snapshot_id(TS + 1, 'b')} is being made by the job snapshot-2" in said
    document = json.loads(sluice(config, "list", "--json").stdout)
    assert (document["snapshot"], document["ts"], document["rows"]) == (snapshot.id, TS, 50)


def test_a_damaged_file_is_named_and_the_exit_code_says_so(config: Path, archive: Archive) -> None:
    whole, damaged = made(archive, TS), made(archive, TS + 9)
    (file,) = damaged.tables[0].files
    content = archive.storage.read(file.path)
    archive.storage.replace(file.path, content[:-9] + b"X" + content[-8:])
    found = sluice(config, "check")
    assert found.return_value == 1
    assert f"{whole.id}: whole" in found.output
    assert f"{damaged.id}: damaged" in found.output
    assert file.path in found.output
    assert sluice(config, "check", whole.id).return_value == 0


def test_a_snapshot_that_somebody_reads_is_not_forgotten(config: Path, archive: Archive) -> None:
    snapshot = made(archive, TS)
    holds = Pins(archive.storage)
    holds.note("reader", Pin("a restore", TS, (snapshot.id,)))
    found = sluice(config, "forget", snapshot.id)
    assert "is read by a restore" in str(found.exception)
    assert archive.snapshots.all() == [snapshot]
    holds.forget("reader")
    assert f"forgot {snapshot.id}" in sluice(config, "forget", snapshot.id).output
    assert archive.snapshots.all() == []
    assert "there is no snapshot" in str(sluice(config, "forget", snapshot.id).exception)
