"""Makes a small folder with one of everything that this version writes durably, by the program's
own code.

    .venv/bin/python -m tests.upgrade.record tests/upgrade/release_1.tar.gz

The recorded one, `release_1.tar.gz`, is what the first release writes: it is made anew only as long
as that one isn't released. A release with another format records one of its own beside it.

    relay/        three windows, applied through the first one; orders, an override, a job,
                  an aligned chunk
    archive/      the same windows in a segment, a snapshot
    pump/         a pump's data directory: transactions, a rollback, a fake binlog, a Prewrite
                  without verdict
    rest/         a relay log and an archive with one file of every other kind (record_rest.py)
    expected.json what is to be read of it
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c

from sluice.etl.apply import run_apply
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.downstream import Checkpoint, SavepointFile
from sluice.etl.downstream.sinks.mysql import ChangeOrigin
from sluice.etl.downstream.sinks.mysql_parallel import ParallelMySQLSink
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.pump_service.cluster.node import check_cluster, node_id
from sluice.pump_service.store import Store
from sluice.relay import SKIP, AlignedChunk, Override, RelayLog
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    Pin,
    Pins,
    SnapshotFile,
    SnapshotStore,
    SnapshotTable,
    snapshot_id,
)
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import Jobs, WriteScope
from tests.etl.apply.test_apply_random import fresh, rows_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES, History
from tests.pump_service import storekit
from tests.relay.archivekit import archive_all
from tests.upgrade.record_rest import record_rest

SEED, TRANSACTIONS, A_WINDOW = 15, 30, 10


def settings_of(folder: Path, server: MariaDBServer, mode: str = "atomic") -> Settings:
    """A pipeline from the relay log in `folder` to a server."""
    return Settings(
        Upstream("unused"),
        Relay(f"file://{folder}/relay"),
        server.downstream,
        apply=Apply(mode, 2, 10_000),
    )


def record(folder: Path, server: MariaDBServer) -> None:
    """Write everything into an empty folder; `server` is emptied, and used."""
    expected: dict[str, Any] = {}
    history = History(SEED)
    history.grow(TRANSACTIONS)
    relay = history.land(f"file://{folder}/relay", [A_WINDOW])
    windows = list(relay.windows(0))
    with contextlib.closing(fresh(server)) as connection:
        _apply_first(folder, server, relay, expected)
        expected["rows_then"] = {name: rows_of(connection, name) for name in TABLES}
        with connection.cursor() as cursor:
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
            expected["in_flight"] = cursor.fetchall()[0][0]
    expected["rows"] = {name: history.expected(name) for name in TABLES}
    expected["hi"] = [window.hi for window in windows]
    _orders(relay, windows[-1].hi)
    _archive(folder, relay)
    SavepointFile(folder / "savepoint", 7).save(
        Checkpoint(windows[0].hi, 1), "binlog-0000000000000000", 100
    )
    rest = history.land(f"file://{folder}/rest/relay", [A_WINDOW])
    record_rest(rest, f"file://{folder}/rest/archive", TABLES["plain"])
    expected["pump"] = _pump(folder / "pump")
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")


def _apply_first(
    folder: Path, server: MariaDBServer, relay: RelayLog, expected: dict[str, Any]
) -> None:
    settings = settings_of(folder, server)
    first = relay.first()
    assert first is not None
    run_apply(settings, until_ts=first.hi, run_seconds=240, prepare=local_preparer(settings))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        expected["checkpoint"] = cursor.fetchall()[0][0]
    # A flight of which nothing was written: the row alone tells of it.
    sink = ParallelMySQLSink.open(
        settings.downstream, ChangeOrigin.from_upstream(settings.upstream, settings.rules), 7
    )
    sink.set_guard(_Keeper(json.loads(expected["checkpoint"])["sluice"]["owner"]))
    sink.recover()
    second = relay.next(first.hi)
    assert second is not None
    url = settings.relay.url
    steps = prepare_steps(url, BatchPayload.from_windows([second]), PrepareOptions("groups", 2))
    sink.run(step for step in steps if step.kind == "flight")
    sink.close()


class _Keeper:
    """Admits whatever the row says."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline

    def check_checkpoint(self, found: Checkpoint | None) -> None:
        pass


def _orders(relay: RelayLog, hi: int) -> None:
    """Orders, an override about a transaction to come, a job with an aligned chunk, and a claim."""
    relay.claim("land")
    relay.change_control(lambda control: replace(control, land_paused=True))
    relay.overrides.add(Override(hi + 1000, SKIP, (), "ann", "too large", 1))
    Consumers(relay).note("other", hi, "another pipeline")
    job = Jobs(relay.storage).create(
        "backfill", {"of": ["rnd.plain"]}, WriteScope("db:3306", ("rnd.plain",)), "ann"
    )
    job.save_plan({"tables": ["rnd.plain"]})
    relay.aligned_chunks.make(AlignedChunk(hi + 2000, job.id, 1, 102, "rnd", "plain", made_ms=1))


def _archive(folder: Path, relay: RelayLog) -> None:
    archive = Archive.open(f"file://{folder}/archive")
    archive_all(relay, archive)
    snapshots, name, rows = SnapshotStore(archive.storage), snapshot_id(400, "a1"), b"rows" * 10
    snapshots.begin(name, PendingSnapshot("snapshot-1", made_ms=1))
    path = f"snapshots/{name}/102/1.parquet"
    with archive.storage.new_file(path) as file:
        file.write(rows)
    table = SnapshotTable(
        "rnd",
        "plain",
        TABLES["plain"].to_json(),
        (SnapshotFile(path, 3, len(rows), google_crc32c.value(rows), 90),),
    )
    snapshots.publish(
        ArchiveSnapshot(name, 400, 1, 7, 1, "a test", ({"id": 1, "name": "rnd"},), (table,))
    )
    Pins(archive.storage).note("restore-1", Pin("a restore", 400, (name,), "restore-1", 500))


def _pump(folder: Path) -> list[list[int]]:
    """A pump's data directory; (commit_ts, start_ts) of what can be read there."""
    store = Store.open(folder, storekit.OPTIONS)
    base = storekit.BASE
    for n in range(1, 6):
        storekit.write(store, storekit.prewrite(base + 10 * n, b"value %d" % n))
        storekit.write(store, storekit.commit(base + 10 * n, base + 10 * n + 5))
    storekit.write(
        store, storekit.prewrite(base + 61), storekit.rollback(base + 61), storekit.fake(base + 70)
    )
    storekit.write(store, storekit.prewrite(base + 80, b"undecided"))
    storekit.eventually(lambda: store.max_commit_ts >= base + 70)
    store.close()
    node_id(folder, "pump-1:8250", "pump-1:8250")
    check_cluster(folder, 7)
    return [[base + 10 * n + 5, base + 10 * n] for n in range(1, 6)]


def pack(folder: Path) -> bytes:
    """The folder as tar.gz."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(folder, arcname=".", filter=_nobodys)
    return packed.getvalue()


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main(target: str) -> None:
    """Record into the file `target`."""
    with tempfile.TemporaryDirectory() as place:
        server = MariaDBServer(Path(place) / "mariadb")
        server.start()
        try:
            folder = Path(place) / "recorded"
            folder.mkdir()
            record(folder, server)
            Path(target).write_bytes(pack(folder))
        finally:
            server.kill()


if __name__ == "__main__":
    main(sys.argv[1])
