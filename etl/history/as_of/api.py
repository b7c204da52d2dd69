"""Query tables of the past: as of a moment, or the differences between two.

They come from the archive and its snapshots.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.history.archive import archive_through
from sluice.etl.history.as_of.advance import schema
from sluice.etl.history.as_of.aggregations import (
    AggregateResult,
    Aggregation,
    CollectDiff,
    CollectFingerprints,
    CollectRows,
    WriteSnapshotFiles,
    from_ipc,
)
from sluice.etl.history.as_of.by_spark import SparkExecution
from sluice.etl.history.as_of.diff import diff_schema
from sluice.etl.history.as_of.fingerprint import Fingerprint
from sluice.etl.history.as_of.hash_partitions import CollectPartRows, CollectPartSums, PartSums
from sluice.etl.history.as_of.query_planner import AsOfTable, PlannedQuery, plan_query
from sluice.etl.history.as_of.read_planner import SnapshotStart
from sluice.etl.history.as_of.read_tasks import TimeTravelPlan
from sluice.etl.history.as_of.table_folders import TableFolders, WriteTableFiles
from sluice.etl.history.clear_values import ClearValues
from sluice.etl.history.history_log import pinned
from sluice.etl.settings import Settings
from sluice.relay.archive import Archive, SnapshotFile
from sluice.tidb import tso

PlanExecutor = Callable[[TimeTravelPlan, Aggregation], Iterator[AggregateResult]]
"""Executes a plan: `SparkExecution`, or `sluice.etl.history.as_of.by_spark.run_locally`.
"""


@dataclass(frozen=True, slots=True)
class TimeTravelQuery:
    """A query of `tables_as_of` or `differences_between`.

    Nothing is read before one of the methods is called, each of which computes again. They raise
    AsOfError, relay errors, RemovedError, SparkError.
    """

    archive_url: str
    asked: PlannedQuery
    snapshots: tuple[str, ...]
    run: PlanExecutor
    moments: tuple[int, ...]

    @property
    def tables(self) -> Mapping[str, AsOfTable]:
        """Return the tables at the (later) moment, by `schema.table`."""
        return self.asked.tables[self.moments[-1]]

    @property
    def skipped(self) -> tuple[int, ...]:
        """Return commit timestamps of transactions that are missing, by operators' overrides."""
        return self.asked.skipped

    def rows(self) -> Generator[tuple[str, pa.RecordBatch], None, None]:
        """Yield chunks of rows with their table's name, in no order.

        They have the stored columns but those left out, in types and texts of
        `sluice.tidb.rows.arrow_schema`. There is no chunk of a table without rows.
        """
        for result in self._results(CollectRows()):
            for batch in from_ipc(result.payload):
                yield result.name, batch

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return the fingerprint of each table's rows."""
        found = dict.fromkeys(self.tables, Fingerprint())
        for result in self._results(CollectFingerprints()):
            found[result.name] += Fingerprint.from_json(json.loads(result.payload))
        return found

    def part_sums(self, parts: int) -> dict[str, PartSums]:
        """Return each table's sums in `parts` parts.

        See `sluice.etl.history.as_of.hash_partitions`.
        """
        found = {name: PartSums(parts) for name in self.tables}
        for result in self._results(CollectPartSums(parts)):
            found[result.name].add_all(PartSums.from_json(json.loads(result.payload)))
        return found

    def part_rows(
        self, parts: int, wanted: Mapping[str, Sequence[int]]
    ) -> Generator[tuple[str, pa.RecordBatch], None, None]:
        """Yield the rows of some parts of some tables, with their table's name.

        They have the `compared_columns`, in no order.
        """
        for result in self._results(CollectPartRows(parts, wanted)):
            for batch in from_ipc(result.payload):
                yield result.name, batch

    def files(
        self, folder: str, on_file: Callable[[str, SnapshotFile], None] = lambda name, file: None
    ) -> dict[str, list[SnapshotFile]]:
        """Write the rows as files of a snapshot, by Spark's workers, and return them by table.

        They are below `folder` of the archive. `on_file` is called with each one's table as it
        comes.
        """
        found: dict[str, list[SnapshotFile]] = {name: [] for name in self.tables}
        for result in self._results(WriteSnapshotFiles(self.archive_url, folder)):
            file = SnapshotFile.from_json(json.loads(result.payload))
            found[result.name].append(file)
            on_file(result.name, file)
        return found

    def write_parquet(self, url: str) -> dict[str, int]:
        """Write each table as a folder of Parquet files, by Spark's workers; return their rows.

        See `sluice.etl.history.as_of.table_folders`. Raises RequestError if a folder exists.
        """
        found: dict[str, list[SnapshotFile]] = {name: [] for name in self.tables}
        with TableFolders(url, found) as folders:
            for result in self._results(WriteTableFiles(url)):
                found[result.name].append(SnapshotFile.from_json(json.loads(result.payload)))
            folders.commit(found)
        return {name: sum(file.rows for file in files) for name, files in found.items()}

    def differences(self) -> Generator[tuple[str, pa.RecordBatch], None, None]:
        """Yield the differences between the two moments, by table.

        See `sluice.etl.history.as_of.diff`; of tables that exist at both, under one name.
        """
        for result in self._results(CollectDiff(*self.moments)):
            for batch in from_ipc(result.payload):
                yield result.name, batch

    def diff_schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of `differences`, by table."""
        earlier, later = (self.asked.versions[moment] for moment in self.moments)
        return {name: diff_schema(earlier[name], later[name]) for name in later if name in earlier}

    def row_schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of `rows`, by table."""
        return {
            name: schema(version.columns)
            for name, version in self.asked.versions[self.moments[-1]].items()
        }

    def _results(self, finish: Aggregation) -> Generator[AggregateResult, None, None]:
        with self.held():
            for plan in self.asked.plans:
                yield from (
                    result for result in self.run(plan, finish) if result.moment == self.moments[-1]
                )

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Pin the archive's files that the query reads, until the context ends."""
        what = f"`sluice as-of` {tso.text(self.moments[-1])}"
        return pinned(
            Archive.open(self.archive_url), "as-of", what, self.asked.start_ts, self.snapshots
        )


def tables_as_of(  # noqa: PLR0913 what is asked for, and by which means
    settings: Settings,
    ts: int,
    tables: Sequence[str],
    *,
    ignored: Collection[int] = (),
    run: PlanExecutor | None = None,
    shows_values: bool = True,
) -> TimeTravelQuery:
    """Query tables as of `ts` (TSO): every transaction committed through it, and no other.

    `tables` are `schema.table` then, also with * and ?. What is landed and not archived yet is
    archived first.

    `ignored`: commit timestamps of transactions to be left out. `run`: `SparkExecution` unless
    something else is given. `shows_values`: False for callers that show no values of rows, or mask
    them. Raises ClearValuesError before anything else, AsOfError with the table and the reason,
    errors of `sluice.etl.history.archive.archive_through`, relay errors.
    """
    clear = ClearValues.of(settings, "tables of the past") if shows_values else None
    return _build_query(settings, (ts,), tables, ignored, run, clear)


def differences_between(
    settings: Settings,
    earlier: int,
    later: int,
    tables: Sequence[str],
    *,
    run: PlanExecutor | None = None,
) -> TimeTravelQuery:
    """Return the query for `TimeTravelQuery.differences` between two moments (TSO).

    Raises as `tables_as_of`.
    """
    clear = ClearValues.of(settings, "differences between tables of the past")
    return _build_query(settings, (earlier, later), tables, (), run, clear)


def _build_query(  # noqa: PLR0913 as its callers
    settings: Settings,
    moments: tuple[int, ...],
    tables: Sequence[str],
    ignored: Collection[int],
    run: PlanExecutor | None,
    clear: ClearValues | None,
) -> TimeTravelQuery:
    url = settings.archive_url
    archive = Archive.open(url)
    last = archive.last()
    if last is None or last.hi < moments[-1]:
        archive_through(settings, moments[-1])
    ids: dict[int, str] = {}
    snapshots = _snapshots(archive, moments[0], ids, clear)
    asked = plan_query(archive.log, snapshots, moments, tables, ignored)
    if clear is not None:
        clear.check_range(asked.start_ts)
    used = tuple(ids[ts] for ts in asked.snapshots)
    return TimeTravelQuery(
        url, asked, used, run or SparkExecution(settings.spark.for_batch(), url), moments
    )


def _snapshots(
    archive: Archive, moment: int, ids: dict[int, str], clear: ClearValues | None
) -> Iterator[SnapshotStart]:
    """Yield the snapshots at or before a moment, from the newest to the oldest.

    `ids` learns their ids, by timestamp. Those with clear values are passed over.
    """
    while (snapshot := archive.snapshots.latest(moment)) is not None:
        if clear is not None and not clear.is_masked(table.table for table in snapshot.tables):
            moment = snapshot.ts - 1
            continue
        source = SnapshotSource.from_snapshot(archive.url, snapshot)
        tables = {table.id: table for table in source.definitions().tables if table.is_base_table}
        ids[snapshot.ts] = snapshot.id
        yield SnapshotStart(snapshot.ts, tables, source)
        moment = snapshot.ts - 1


__all__ = ["PlanExecutor", "TimeTravelQuery", "differences_between", "tables_as_of"]
