"""Measure how fast a snapshot is made, and loaded into a database.

It is made from a dump and from the downstream.

MariaDB at its default durability and Spark run, nothing else. The dump of `sluice.bench.copy`
becomes a snapshot by Spark's workers, the snapshot is loaded into an empty MariaDB, and that, with
the checkpoint which it has then, is read back by sessions with snapshots. Rates are of the rows in
memory (`SnapshotFile.row_bytes`), about the bytes of their text. CPU time is that of every process
meanwhile: on a busy machine that is what to compare.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.bench.copy import POSITION, TABLE, write_dump
from sluice.bench.processes import DatabaseProcesses
from sluice.devstack import Stack
from sluice.devstack.launch import drop_everything
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.spark_loads import SparkLoadMaker
from sluice.etl.history.snapshots.chunk_writer import WRITE_TIMEOUT_S, WriteChunks, WrittenFiles
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable
from sluice.etl.history.snapshots.from_downstream import plan_ranges, write_ranges
from sluice.etl.history.snapshots.from_source import SourceRowsWriter
from sluice.etl.history.snapshots.plan import SnapshotPlan, plan_of_source, with_files
from sluice.etl.settings import Relay, Settings, load_settings
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotFile,
    snapshot_id,
)
from sluice.tidb.schema import Schema

__all__ = ["ROWS", "BaseRate", "measure"]

ROWS = 1_000_000
_WARM_UP_ROWS = 50_000
_CLUSTER = 1
_SESSIONS = 2
_KNOWN = SourceSchema(POSITION, 1, (Schema(3, "sbtest", "utf8mb4", "utf8mb4_bin"),), (TABLE,))


@dataclass(slots=True)
class BaseRate:
    """One way of making a snapshot, or of loading one.

    `row_bytes`: of the rows in memory; `file_bytes`: as Parquet.
    """

    way: str
    rows: int = 0
    row_bytes: int = 0
    file_bytes: int = 0
    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the lines for people."""
        rate = (
            f"{self.row_bytes / 1e6 / self.seconds:,.1f} MB/s, {self.rows / self.seconds:,.0f}"
            " rows/s"
        )
        cpu = ", ".join(
            f"{name} {1e6 * seconds / self.rows:.4g}" for name, seconds in self.cpu_s.items()
        )
        return [
            f"{self.way}: {rate} ({self.rows:,} rows in {self.seconds:.2f} s)",
            f"  {'CPU, us a row':<22}{cpu}",
        ]


def measure(stack: Stack, rows: int, report: Callable[[str], None]) -> list[BaseRate]:
    """Return a result for each way.

    Raises StackError.
    """
    stack.down()
    stack.wipe("mariadb", "spark", "relay", "logs")
    folder = stack.home / "dumps"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        stack.claim()
        stack.up(("mariadb", "spark"), report=report)
        run = _Run(stack, folder)
        for count in (_WARM_UP_ROWS, rows):
            drop_everything(stack.site())
            write_dump(folder / f"dump-{count}", "sql", count)
            report(f"{count:,} rows from a dump, into a database, and back")
            run.all_ways(folder / f"dump-{count}", folder / f"relay-{count}")
        return run.results[3:]
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._settings = load_settings(stack.home / "sluice.toml")
        self._processes = DatabaseProcesses(stack)
        self._folder = folder
        self.results: list[BaseRate] = []

    def all_ways(self, dump: Path, relay: Path) -> None:
        settings = replace(self._settings, relay=Relay(relay.as_uri()))
        snapshot = self._from_dump(settings, dump)
        self._into_database(settings, snapshot)
        self._from_downstream(settings)

    def _from_dump(self, settings: Settings, dump: Path) -> ArchiveSnapshot:
        source = DumplingFolder.open(str(dump))
        archive = Archive.open(settings.archive_url)
        plan: SnapshotPlan = plan_of_source(
            snapshot_id(POSITION, "bench"), source, _KNOWN, _CLUSTER, {}
        )
        archive.snapshots.begin(plan.snapshot, PendingSnapshot("bench"))
        function = WriteChunks(dict(source.spec()), settings.archive_url)
        calls = JobCalls(
            SessionTarget(settings.spark, "snapshot", settings.relay.url), function, WRITE_TIMEOUT_S
        )
        calls.connect()
        done: WrittenFiles = {}
        with self._measured("from a dump") as result:
            for written in SourceRowsWriter(plan, archive.storage).write(
                calls, _SESSIONS, {}, lambda: True
            ):
                done |= written
            tables = with_files(plan, done)
            snapshot = archive.snapshots.publish(
                ArchiveSnapshot(
                    plan.snapshot,
                    POSITION,
                    1,
                    _CLUSTER,
                    time.time_ns() // 10**6,
                    "bench",
                    plan.schemas,
                    tables,
                )
            )
            _count(result, [file for table in tables for file in table.files])
        calls.close()
        return snapshot

    def _into_database(self, settings: Settings, snapshot: ArchiveSnapshot) -> None:
        source = SnapshotSource.from_snapshot(settings.archive_url, snapshot)
        bootstrap = BootstrapPlanner(settings, source, _KNOWN, _CLUSTER)
        bootstrap.indexes_after_bytes = 0
        make = SparkLoadMaker(
            SessionTarget(settings.spark, "copy", settings.relay.url), source.spec()
        )
        with self._measured("a snapshot into a database, with the secondary index") as result:
            bootstrap.run(make)
            _count(result, [file for table in snapshot.tables for file in table.files])
        make.close()

    def _from_downstream(self, settings: Settings) -> None:
        storage = Archive.open(settings.archive_url).storage
        place = DownstreamTable(TABLE, TABLE.schema_name, TABLE.name)
        with self._measured("from the downstream") as result:
            with ConsistentReader.open(settings.downstream, _CLUSTER, _SESSIONS) as snapshot:
                stripes = plan_ranges(snapshot, [(place, 1 << 30)])
                found = list(
                    write_ranges(snapshot, stripes, storage, "snapshots/back", lambda: True)
                )
            _count(result, [file for _, files in found for file in files])

    @contextmanager
    def _measured(self, way: str) -> Iterator[BaseRate]:
        result = BaseRate(way)
        before, began = self._processes.cpu(), time.monotonic()
        yield result
        result.seconds, after = round(time.monotonic() - began, 3), self._processes.cpu()
        result.cpu_s = {name: round(after[name] - before[name], 2) for name in after}
        self.results.append(result)


def _count(result: BaseRate, files: list[SnapshotFile]) -> None:
    result.rows = sum(file.rows for file in files)
    result.row_bytes = sum(file.row_bytes for file in files)
    result.file_bytes = sum(file.bytes for file in files)
