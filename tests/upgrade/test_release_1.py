"""What release 1 wrote, recorded by `tests.upgrade.record`, is read and gone on from.

What is written today release 1 can read.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.downstream import SavepointFile
from sluice.pump_service.store import Store
from sluice.relay import RelayLog
from sluice.relay.archive import Archive, Pins, SnapshotStore
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import Jobs
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES
from tests.pump_service import storekit
from tests.upgrade.record import record, settings_of

RECORDED = Path(__file__).parent / "release_1.tar.gz"


def unpacked(folder: Path) -> Path:
    """The recorded folder, in one of the test's own."""
    with tarfile.open(fileobj=io.BytesIO(RECORDED.read_bytes())) as archive:
        archive.extractall(folder)  # of the repository
    return folder


@pytest.fixture
def release_1(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "release_1")


def expected_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return found


def as_it_was(folder: Path, server: MariaDBServer, checkpoint: str) -> None:
    """Make the server the downstream that the recording speaks of, at that checkpoint."""
    expected = expected_of(folder)
    with contextlib.closing(fresh(server)) as connection, connection.cursor() as cursor:
        for name, rows in expected["rows_then"].items():
            for row in rows:
                values = ", ".join(["%s"] * len(row))
                cursor.execute(f"INSERT INTO rnd.`{name}` VALUES ({values})", row)
        cursor.execute("CREATE DATABASE tidb_binlog")
        cursor.execute(
            "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint"
            " MEDIUMTEXT)"
        )
        cursor.execute("INSERT INTO tidb_binlog.checkpoint VALUES (7, %s)", (expected[checkpoint],))
    owned = folder / "relay/downstream.json"
    owned.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{server.port}", owned.read_text()))


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@pytest.mark.parametrize("checkpoint", ["checkpoint", "in_flight"])
def test_applying_goes_on_from_the_relay_log_and_the_checkpoint_of_release_1(
    mariadb: MariaDBServer, release_1: Path, checkpoint: str, mode: str
) -> None:
    as_it_was(release_1, mariadb, checkpoint)
    expected = expected_of(release_1)
    settings = settings_of(release_1, mariadb, mode)
    run_apply(
        settings, until_ts=expected["hi"][-1], run_seconds=240, prepare=local_preparer(settings)
    )
    with mariadb.connect() as connection:
        for name in TABLES:
            assert [list(row) for row in rows_of(connection, name)] == expected["rows"][name], name


def test_a_pump_goes_on_with_the_data_directory_of_release_1(release_1: Path) -> None:
    folder, expected = release_1 / "pump", [tuple(pair) for pair in expected_of(release_1)["pump"]]
    store = Store.open(folder, storekit.OPTIONS)
    try:
        storekit.eventually(lambda: store.max_commit_ts >= storekit.BASE + 70)
        assert [found[:2] for found in storekit.window(store)] == expected
        undecided = storekit.BASE + 80
        assert store.is_open(undecided)
        storekit.write(store, storekit.commit(undecided, undecided + 5))
        storekit.eventually(lambda: store.max_commit_ts >= undecided + 5)
        assert [found[:2] for found in storekit.window(store)] == [
            *expected,
            (undecided + 5, undecided),
        ]
    finally:
        store.close()


def test_the_archive_of_release_1_holds_what_its_relay_log_does(release_1: Path) -> None:
    relay, archive = (
        RelayLog.open(f"file://{release_1}/relay"),
        Archive.open(f"file://{release_1}/archive"),
    )
    changes = archive.log
    read = pa.concat_tables(relay.read([window]) for window in relay.windows(0))
    archived = [part for window in changes.windows(0) for part in window.parts]
    assert archived and read.num_rows == sum(part.rows for part in archived)
    snapshot = SnapshotStore(archive.storage).latest(400)
    assert snapshot is not None and snapshot.table("rnd", "plain") is not None
    assert list(Pins(archive.storage).all()) == ["restore-1"]


def test_orders_overrides_jobs_and_positions_of_release_1_are_known(release_1: Path) -> None:
    relay, hi = RelayLog.open(f"file://{release_1}/relay"), expected_of(release_1)["hi"][-1]
    assert relay.control().land_paused
    assert [override.by for override in relay.overrides.list()] == ["ann"]
    assert Consumers(relay).positions()["other"] == hi
    (job,) = Jobs(relay.storage).list()
    assert (job.id, job.entry().state, job.plan()) == (
        "backfill",
        "planned",
        {"tables": ["rnd.plain"]},
    )
    assert [one.job for one in relay.aligned_chunks.of_job("backfill")] == ["backfill"]
    savepoint = SavepointFile(release_1 / "savepoint", 7).load()
    assert savepoint is not None and (savepoint.checkpoint.commit_ts, savepoint.offset) == (
        expected_of(release_1)["hi"][0],
        100,
    )


def form_of(document: Any) -> Any:
    """What a document is made of: its keys, and the kinds of its values.

    Numbers and texts don't count, but a format's does.
    """
    if isinstance(document, dict):
        # Names of tables and processes are no keys of a format.
        free = any(re.search(r"[\d./]", key) for key in document)
        kept = {
            key: value if key == "format" else form_of(value) for key, value in document.items()
        }
        return ["any name", *{json.dumps(form) for form in kept.values()}] if free else kept
    if isinstance(document, list):
        return sorted({json.dumps(form_of(item), sort_keys=True) for item in document})
    return type(document).__name__


def forms(folder: Path) -> dict[str, Any]:
    """The form of each kind of file in a recorded folder, by its name without numbers or tokens."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        kind = re.sub(r"[0-9a-f]{12,}|\d+|-[0-9a-f]{8}\b", "#", str(path.relative_to(folder)))
        if "measures" in path.parts:
            continue  # counts by name, for people
        if path.suffix == ".json" and path.name != "expected.json":
            found[kind] = form_of(json.loads(path.read_text()))
        elif path.suffix == ".arrow":
            found[kind] = str(pa.ipc.open_file(path).schema)
        elif path.suffix == ".parquet" and "log" in path.parts:
            found[kind] = str(pq.read_schema(path))
        elif path.suffix == ".vlog":
            found[kind] = [path.read_bytes()[:4].hex()]
        elif path.name in (".cluster", "savepoint"):
            found[kind] = re.sub(r"\d+", "#", path.read_text())
    for name in ("checkpoint", "in_flight"):
        found[name] = form_of(json.loads(expected_of(folder)[name]))
    return found


def test_what_is_written_today_has_the_form_that_release_1_reads(
    mariadb: MariaDBServer, release_1: Path, tmp_path: Path
) -> None:
    """If this fails, an older Sluice refuses or misreads what this one writes: raise the document's
    ``format`` (see `sluice.relay.format_version`), keep reading the former one, and record a folder
    for the new one beside this.
    """
    today = tmp_path / "today"
    today.mkdir()
    record(today, mariadb)
    assert forms(today) == forms(release_1)
