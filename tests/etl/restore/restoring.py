"""Restores without Spark, and an archive from a recording."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sluice.etl.apply import Prepare, prepare_options
from sluice.etl.changes.planning import prepare
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.copy.worker import make_loads
from sluice.etl.history.as_of import run_locally, tables_as_of
from sluice.etl.history.as_of.api import PlanExecutor
from sluice.etl.restore import (
    FilesRequest,
    FilesSummary,
    RestoreRequest,
    RestoreSummary,
    create_or_resume,
    run_files,
    run_restore,
)
from sluice.etl.restore.sources import RestoreSources
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from sluice.relay import RelayLog
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotTable,
    snapshot_id,
    write_log,
)
from sluice.relay.jobs import Runner
from sluice.relay.url import folder_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, land

INTO = "{schema}_restored"


def settings_of(server: MariaDBServer, relay_url: str, max_rows: int = 25_000) -> Settings:
    """A pipeline that replicates to the server."""
    return Settings(
        Upstream("unused"), Relay(relay_url), server.downstream, apply=Apply(max_rows=max_rows)
    )


def archived(relay: RelayLog, windows_a_volume: int = 3, name: str = "archive") -> Archive:
    """An archive of all that is landed."""
    archive = Archive.open(folder_of(relay.url, name))
    windows = list(relay.windows(0))
    for number, first in enumerate(range(0, len(windows), windows_a_volume)):
        some = windows[first : first + windows_a_volume]
        archive.append(write_log(relay.storage, archive.storage, some, f"t{number}").segment())
    return archive


def snapshot_at(settings: Settings, ts: int) -> ArchiveSnapshot:
    """A snapshot of all tables as of `ts`, computed from the archive."""
    name, snapshots = snapshot_id(ts, "test"), Archive.open(settings.archive_url).snapshots
    snapshots.begin(name, PendingSnapshot("test"))
    past = tables_as_of(settings, ts, ("*.*",), run=run_locally)
    lineage = RestoreSources.open(settings, ts).lineage()
    files = past.files(f"snapshots/{name}")
    tables = (
        SnapshotTable(
            table.schema_name, table.name, table.to_json(), tuple(files.get(table.full_name, ()))
        )
        for table in lineage.family(()).asked
    )
    schemas = tuple(schema.to_json() for schema in lineage.schemas.values())
    return snapshots.publish(
        ArchiveSnapshot(name, ts, 0, 7, time.time_ns() // 1_000_000, "test", schemas, tuple(tables))
    )


def archive_of(
    recording: str, folder: Path, transactions: int = 200, windows_a_volume: int = 3
) -> str:
    """The URL of a relay log of a recording, with its archive."""
    relay = land(RECORDINGS / recording, f"file://{folder}/relay", transactions)
    archived(relay, windows_a_volume)
    return relay.url


class Here:
    """What Spark's workers would make, made in this process."""

    @contextmanager
    def loads(self, own: Settings, source: SnapshotSource) -> Iterator[MakeLoads]:
        yield lambda chunk, table: make_loads(source.spec(), chunk, table)

    @contextmanager
    def steps(self, own: Settings, url: str, without_rows: frozenset[int]) -> Iterator[Prepare]:
        options = replace(prepare_options(own), without_rows=without_rows)
        yield lambda windows: prepare(url, windows, options)

    def past(self) -> PlanExecutor:
        return run_locally


def restore(settings: Settings, request: RestoreRequest) -> RestoreSummary:
    job = create_or_resume(settings, request, "test")
    return run_restore(settings, job, Runner("test"), ways=Here())


def restore_files(
    settings: Settings, request: FilesRequest, *, run: PlanExecutor = run_locally
) -> FilesSummary:
    return run_files(
        settings, create_or_resume(settings, request, "test"), Runner("test"), compute=run
    )
