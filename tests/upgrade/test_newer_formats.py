"""What a newer version wrote is refused by its format's name, and nothing of it is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.downstream import CheckpointError, ChunkResult, SavepointFile
from sluice.pump_service.store import Store
from sluice.pump_service.store.errors import StoreError
from sluice.relay import RelayError, RelayLog
from sluice.relay.archive import Archive, Pins, SnapshotStore
from sluice.relay.checksummed import encode_checksummed
from sluice.relay.consumers import Consumers
from sluice.relay.format_version import NewerFormatError
from sluice.relay.jobs import DONE, JobCounts, Jobs, Runner, TableProgress, WriteScope
from sluice.relay.storage import LocalStorage
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.pump_service import storekit
from tests.upgrade.record import settings_of
from tests.upgrade.test_release_1 import as_it_was, expected_of, unpacked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What release 1 wrote."""
    return unpacked(tmp_path / "written")


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def newer_json(path: Path) -> None:
    """The document as a version with format 2 would write it: with a key that nobody here knows."""
    path.write_text(json.dumps({"format": 2, "unheard_of": True} | json.loads(path.read_text())))


def newer_sealed(path: Path, version: int = 2) -> None:
    document = json.loads(path.read_text())
    del document["crc32c"]
    path.write_bytes(encode_checksummed({**document, "format": version, "unheard_of": True}))


def newer_index(path: Path) -> None:
    """An index of the archive, and the catalogue that names it by size and checksum."""
    data = path.read_bytes()
    text = pa.decompress(data[8:], int.from_bytes(data[:8], "little"), "zstd", asbytes=True)
    text = text.replace(b'"format":1', b'"format":2', 1)
    packed = len(text).to_bytes(8, "little") + pa.Codec("zstd").compress(text, asbytes=True)
    path.write_bytes(packed)
    (day,) = path.parents[2].glob("days/*/*.json")
    document = json.loads(day.read_text())
    del document["crc32c"]
    index = document["segments"][0]["index"]
    index |= {"bytes": len(packed), "crc32c": google_crc32c.value(packed)}
    day.write_bytes(encode_checksummed(document))


def relay_of(folder: Path) -> RelayLog:
    return RelayLog.open(f"file://{folder}/relay")


def archive_of(folder: Path) -> Archive:
    return Archive.open(f"file://{folder}/archive")


DOCUMENTS: dict[str, tuple[str, Callable[[Path], None], Callable[[Path], object]]] = {
    "window record": (
        "relay/windows/*/*.json",
        partial(newer_sealed, version=3),
        lambda f: relay_of(f).last(),
    ),
    "orders": ("relay/control/*.json", newer_json, lambda f: relay_of(f).control()),
    "whose downstream it is": (
        "relay/downstream.json",
        newer_json,
        lambda f: relay_of(f).ownership(),
    ),
    "override": ("relay/overrides/*.json", newer_json, lambda f: relay_of(f).overrides.list()),
    "position of a consumer": (
        "relay/consumers/other.json",
        newer_json,
        lambda f: Consumers(relay_of(f)).positions(),
    ),
    "aligned chunk": (
        "relay/aligned-chunks/*.json",
        newer_json,
        lambda f: relay_of(f).aligned_chunks.of_job("backfill"),
    ),
    "list of open jobs": (
        "relay/open-jobs/*.json",
        newer_json,
        lambda f: Jobs(relay_of(f).storage).unfinished(),
    ),
    "specification of a job": (
        "relay/jobs/*/spec.json",
        newer_json,
        lambda f: Jobs(relay_of(f).storage).list(),
    ),
    "plan of a job": (
        "relay/jobs/*/plan.json",
        newer_json,
        lambda f: Jobs(relay_of(f).storage).get("backfill").plan(),
    ),
    "catalogue": ("archive/days/*/*.json", newer_sealed, lambda f: archive_of(f).last()),
    "index of a segment": (
        "archive/log/*/*.windows",
        newer_index,
        lambda f: archive_of(f).log.last(),
    ),
    "snapshot": (
        "archive/snapshots/*/snapshot.json",
        newer_sealed,
        lambda f: SnapshotStore(archive_of(f).storage).latest(500),
    ),
    "hold": ("archive/pins/*.json", newer_json, lambda f: Pins(archive_of(f).storage).all()),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_newer_document_is_refused_by_its_format(folder: Path, kind: str) -> None:
    pattern, fake, read = DOCUMENTS[kind]
    read(folder)
    paths = list(folder.glob(pattern))
    assert paths
    for path in paths:
        fake(path)
    before = everything(folder)
    with pytest.raises(RelayError, match=r"has format (2, .* reads 1|3, .* reads 2):") as caught:
        read(folder)
    assert "install the version that wrote it" in caught.value.hint
    assert not caught.value.transient
    assert everything(folder) == before


def test_a_newer_relay_log_or_archive_is_refused_before_anything_is_claimed_in_it(
    folder: Path, mariadb: MariaDBServer
) -> None:
    for place in ("relay", "archive"):
        (folder / place / "format.json").write_text('{"format": 2, "by": "sluice 9"}')
    before = everything(folder)
    settings = settings_of(folder, mariadb)
    with pytest.raises(RelayError, match=r"relay log file://.*relay has format 2"):
        settings.open_relay()
    with pytest.raises(RelayError, match="has format 2"):
        run_apply(settings, run_seconds=60, prepare=local_preparer(settings))
    with pytest.raises(RelayError, match=r"archive file://.*archive has format 2"):
        archive_of(folder)
    assert everything(folder) == before


def test_a_newer_pump_s_data_directory_is_refused_before_it_is_touched(folder: Path) -> None:
    data = folder / "pump"
    (data / ".format").write_text("3\n")
    torn = data / "value/000000.vlog"
    torn.write_bytes(torn.read_bytes() + b"what a newer format may have behind the records")
    before = everything(folder)
    with pytest.raises(StoreError, match=r"have format '3' by .*\.format") as caught:
        Store.open(data, storekit.OPTIONS)
    assert "start the version of the pump that wrote it" in str(caught.value)
    assert everything(folder) == before


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_newer_checkpoint_row_is_refused_before_anything_is_written(
    folder: Path, mariadb: MariaDBServer, mode: str
) -> None:
    as_it_was(folder, mariadb, "checkpoint")
    row = json.loads(expected_of(folder)["checkpoint"])
    row["sluice"] |= {"format": 4, "unheard_of": {}}
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE tidb_binlog.checkpoint SET checkPoint = %s", (json.dumps(row),))
    settings = settings_of(folder, mariadb, mode)
    with pytest.raises(
        CheckpointError,
        match="checkpoint of cluster 7 has format 4, this version of Sluice reads 3",
    ):
        run_apply(
            settings,
            until_ts=expected_of(folder)["hi"][-1],
            run_seconds=60,
            prepare=local_preparer(settings),
        )
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        assert json.loads(cursor.fetchall()[0][0]) == row


def test_a_newer_savepoint_file_or_note_of_a_chunk_is_refused(folder: Path) -> None:
    path = folder / "savepoint"
    path.write_text(path.read_text().replace("[sluice]\n", "[sluice]\nformat = 2\n"))
    with pytest.raises(CheckpointError, match="savepoint has format 2"):
        SavepointFile(path, 7).load()
    with pytest.raises(CheckpointError, match="sluice_chunks has format 2"):
        ChunkResult.parse(json.dumps({"format": 2, "rows": 1}))


@pytest.mark.parametrize("pattern", ["state/*.json", "progress/*/base.json", "progress/*/*.json"])
def test_what_a_newer_version_wrote_of_a_jobs_runs_is_refused(tmp_path: Path, pattern: str) -> None:
    jobs = Jobs(LocalStorage(tmp_path, tmp_path.as_uri()))
    job = jobs.create("backfill", {}, WriteScope("db:3306"), "ann")
    with job.run(Runner("sluice backfill")) as run:
        run.set_totals({"d.item": TableProgress(bytes_in_all=60)})
        run.did("d.item", JobCounts(5, 60, 1))
        run.end(DONE)
    job.status()
    paths = list(tmp_path.glob(f"jobs/*/{pattern}"))
    assert paths
    for path in paths:
        newer_json(path)
    with pytest.raises(NewerFormatError, match="has format 2"):
        jobs.get("backfill").status()
