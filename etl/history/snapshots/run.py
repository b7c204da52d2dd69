"""Run snapshots as jobs: plan, record, make or continue, cancel."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

from sluice.etl.copy.gc_safepoint import GcSafePoint
from sluice.etl.copy.sources import source_url
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ownership import PipelineIdentity
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots.chunk_writer import (
    WRITE_TIMEOUT_S,
    MakeFiles,
    WriteChunks,
    WrittenFiles,
)
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader, TableChanged
from sluice.etl.history.snapshots.from_downstream import ReadRange, plan_ranges, write_ranges
from sluice.etl.history.snapshots.from_source import SourceRowsWriter
from sluice.etl.history.snapshots.place import PipelineContext
from sluice.etl.history.snapshots.plan import (
    SnapshotPlan,
    counts_of_files,
    schemas_of,
    table_of,
    with_files,
)
from sluice.etl.history.snapshots.preflight import (
    abbreviate_problems,
    downstream_problems,
    downstream_tables,
)
from sluice.etl.history.snapshots.request import (
    ARCHIVE,
    DOWNSTREAM,
    SnapshotJobSummary,
    SnapshotRequest,
)
from sluice.etl.history.snapshots.reuse import ids_of
from sluice.etl.history.snapshots.roll_forward import ROLL_GROUP_BYTES, roll_forward, tables_at
from sluice.etl.settings import Settings
from sluice.etl.spark.job_calls import JobCalls
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay.archive import (
    ArchiveSnapshot,
    PendingSnapshot,
    SnapshotFile,
    SnapshotTable,
    snapshot_id,
)
from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    DONE,
    PAUSED,
    Job,
    JobCounts,
    JobRun,
    Runner,
    StopRequested,
    TableProgress,
)

__all__ = ["KIND", "cancel_snapshot", "create_snapshot", "plan_snapshot", "run_snapshot"]

log = logging.getLogger("sluice.snapshot")

KIND = "snapshot"
_MAX_ATTEMPTS = 5
"""Maximum reads of the downstream, repeated where a DDL changed what was being read."""


def plan_snapshot(settings: Settings, request: SnapshotRequest) -> SnapshotPlan:
    """Return what making a snapshot would do, with what prevents it in `problems`.

    Writes nothing. Raises as `PipelineContext`.
    """
    with PipelineContext.open(settings) as place:
        return place.plan(place.chosen(request))


def create_snapshot(settings: Settings, request: SnapshotRequest, by: str) -> Job:
    """Create the job that makes a snapshot; `by`: the requester.

    Raises as `plan_snapshot`, SnapshotError for what prevents it.
    """
    with PipelineContext.open(settings) as place:
        chosen = place.chosen(request)
        plan = place.plan(chosen)
        if plan.problems:
            raise SnapshotError(abbreviate_problems(plan.problems))
        job = place.jobs.create(KIND, chosen.to_json(), place.touches, by)
        job.save_plan(plan.to_json())
        return job


def run_snapshot(
    settings: Settings, job_id: str, runner: Runner, *, make: MakeFiles | None = None
) -> SnapshotJobSummary:
    """Run a job of `create_snapshot`, or continue it, until it is over or an operator pauses it.

    `make` is Spark by default. Raises as `plan_snapshot`, JobRunsError, LeaseLostError, SparkError.
    """
    with PipelineContext.open(settings) as place:
        job = place.jobs.get(job_id)
        request, plan = _request_of(job)
        with job.run(runner) as run:
            return _SnapshotJob(place, job, run, plan).made(request, make)


def cancel_snapshot(settings: Settings, job_id: str, runner: Runner) -> SnapshotJobSummary:
    """Give up a job that no process runs; nothing of it stays. Raises as `run_snapshot`."""
    with PipelineContext.open(settings) as place:
        job = place.jobs.get(job_id)
        with job.run(runner) as run:
            _remove_unfinished(place, job.id)
            run.end(CANCELLED)
        return SnapshotJobSummary(job.id, CANCELLED)


def _request_of(job: Job) -> tuple[SnapshotRequest, SnapshotPlan]:
    plan = job.plan_of_kind(KIND)  # before what was asked is understood: it may be another kind's
    return SnapshotRequest.from_json(job.spec.asked), SnapshotPlan.from_json(plan)


def _remove_unfinished(place: PipelineContext, job: str, *, but: str = "") -> None:
    """Remove what a job has begun to make, and what jobs that are over have left behind."""
    for name in place.snapshots.ids():
        note = place.snapshots.pending(name)
        if note is not None and name != but and (note.job == job or place.jobs.is_over(note.job)):
            place.snapshots.forget(name)


class _SnapshotJob:
    """A run of the job."""

    def __init__(self, place: PipelineContext, job: Job, run: JobRun, plan: SnapshotPlan) -> None:
        self._context = place
        self._job = job
        self._run = run
        self._plan = plan
        self._storage = place.archive.storage
        self._began = time.monotonic()

    def made(self, request: SnapshotRequest, make: MakeFiles | None) -> SnapshotJobSummary:
        """Make it, or do as was ordered."""
        try:
            snapshot = (
                self._from_downstream(request)
                if request.source == DOWNSTREAM
                else self._from_source(make)
            )
        except StopRequested:
            return self._stop()
        summary = SnapshotJobSummary.from_snapshot(self._job.id, snapshot, self._began)
        self._run.end(DONE, result=summary.to_json())
        return summary

    def _stop(self) -> SnapshotJobSummary:
        if self._run.order == CANCEL:
            _remove_unfinished(self._context, self._job.id)
            self._run.end(CANCELLED)
            return SnapshotJobSummary(self._job.id, CANCELLED)
        self._run.end(PAUSED, message="paused by an order")
        return SnapshotJobSummary(self._job.id, PAUSED)

    def _set_activity(self, what: str) -> None:
        self._run.check_order()
        self._run.doing(what)

    # From a source

    def _from_source(self, make: MakeFiles | None) -> ArchiveSnapshot:
        plan = self._plan
        if (found := self._context.snapshots.find(plan.snapshot)) is not None:
            return found  # by a process that ended before it could record it
        _remove_unfinished(self._context, self._job.id, but=plan.snapshot)
        self._begin(plan.snapshot, plan.refers_to, plan.older)
        with ExitStack() as stack:
            hold = self._gc_hold()
            stack.enter_context(hold or nullcontext())
            rows = (
                SourceRowsWriter(plan, self._storage, ROLL_GROUP_BYTES)
                if self._is_roll_forward
                else SourceRowsWriter(plan, self._storage, masks=self._context.masks)
            )
            done: WrittenFiles = rows.written()
            self._run.set_totals(plan.progress(done))
            make = make or self._default(stack)
            at_once = 1 if self._is_roll_forward else self._context.settings.apply.worker_count
            for written in rows.write(make, at_once, done, self._run.should_continue):
                self._report_written(written)
                done |= written
            self._run.check_order()
            snapshot = self._publish(plan.snapshot, plan, with_files(plan, done))
            if hold is not None:
                hold.release()
        return snapshot

    def _report_written(self, written: WrittenFiles) -> None:
        for number, files in written.items():
            chunk = self._plan.chunks[number]
            done = counts_of_files(files, chunk.bytes)
            if self._is_roll_forward:  # counted as the files came
                done = JobCounts(0, 0, 1, max(0, chunk.bytes - done.bytes))
            self._run.did(chunk.full_name, done)
            self._run.doing(chunk.full_name)

    def _file(self, name: str, file: SnapshotFile) -> None:
        self._run.did(name, JobCounts(file.rows, file.row_bytes, 0, file.row_bytes))

    def _gc_hold(self) -> GcSafePoint | None:
        if self._plan.spec["kind"] != "tidb-sql":
            return None
        service = (
            f"sluice-{PipelineIdentity.from_settings(self._context.settings).id}-{self._job.id}"
        )
        return GcSafePoint(self._context.cluster.pd, service, self._plan.ts)

    @property
    def _is_roll_forward(self) -> bool:
        return bool(self._plan.spec["kind"] == ARCHIVE)

    def _default(self, stack: ExitStack) -> MakeFiles:
        if self._is_roll_forward:
            return roll_forward(
                tables_at(self._context.settings, self._plan.ts), self._file, self._run.doing
            )
        return self._on_spark(stack)

    def _on_spark(self, stack: ExitStack) -> Callable[[Any], list[str]]:
        settings = self._context.settings
        function = WriteChunks(dict(self._plan.spec), settings.archive_url)
        calls = JobCalls(
            SessionTarget(
                settings.spark.for_batch(),
                settings.spark_role("snapshot"),
                settings.relay.url,
                (settings.archive_url, *source_url(self._plan.spec)),
            ),
            function,
            WRITE_TIMEOUT_S,
        )
        stack.callback(calls.close)
        self._set_activity(f"waiting for Spark at {settings.spark.for_batch().remote}")
        calls.connect()
        return calls

    # From the downstream

    def _from_downstream(self, request: SnapshotRequest) -> ArchiveSnapshot:
        for attempt in range(_MAX_ATTEMPTS):
            _remove_unfinished(self._context, self._job.id)
            self._set_activity("waiting for a checkpoint to read at")
            try:
                return self._read_downstream(request)
            except TableChanged as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
                log.warning("the downstream is read again: %s", error)
        raise AssertionError("unreachable")

    def _read_downstream(self, request: SnapshotRequest) -> ArchiveSnapshot:
        settings, place = self._context.settings, self._context
        sessions = settings.apply.worker_count
        cluster_id = place.cluster.pd.cluster_id
        with ConsistentReader.open(settings.downstream, cluster_id, sessions) as snapshot:
            ts = snapshot.checkpoint.commit_ts
            definitions = place.cluster.definitions(ts).of_users()
            older, unchanged = place.unchanged(definitions, full=request.full)
            session = MySQLSession(settings.downstream)
            session.connect()
            try:
                places, problems = downstream_tables(settings, definitions, session)
                problems += downstream_problems(settings, place.relay, definitions)
            finally:
                session.close()
            if problems:
                raise SnapshotError(abbreviate_problems(problems))
            name = snapshot_id(ts, secrets.token_hex(6))
            refers_to = {
                file.path.split("/")[1] for table in unchanged.values() for file in table.files
            }
            self._begin(name, tuple(sorted(refers_to)), older)
            stripes = plan_ranges(
                snapshot, [one for one in places if one[0].table.full_name not in unchanged]
            )
            self._run.set_totals(_progress(stripes))
            files: dict[str, list[Any]] = {}
            for stripe, written in write_ranges(
                snapshot, stripes, self._storage, f"snapshots/{name}", self._run.should_continue
            ):
                full_name = stripe.place.table.full_name
                files.setdefault(full_name, []).extend(written)
                self._run.did(full_name, counts_of_files(written, stripe.bytes))
                self._run.doing(full_name)
            self._run.check_order()
        self._check_unchanged(ts, {i for stripe in stripes for i in ids_of(stripe.place.table)})
        tables = tuple(
            unchanged.get(table.full_name)
            or SnapshotTable(
                table.schema_name,
                table.name,
                table.to_json(),
                tuple(files.get(table.full_name, ())),
            )
            for table in definitions.tables
        )
        plan = SnapshotPlan(
            name, ts, definitions.schema_version, cluster_id, self._plan.made_from, self._plan.spec,
            schemas_of(definitions.schemas), tuple(map(table_of, definitions.tables)), older=older,
        )  # fmt: skip
        return self._publish(name, plan, tables)

    def _check_unchanged(self, ts: int, read: set[int]) -> None:
        """Raise TableChanged if a DDL may have given a table's name to other rows before the read.

        The server does not report every such change. Rows that were changed without DDL were read
        as they were at the snapshot.
        """
        reached, touched = self._context.ddl_since(ts)
        if touched is None or touched & read:
            raise TableChanged(
                f"a DDL committed between {ts} and {reached} changed tables that were being read"
            )

    # Both

    def _begin(self, name: str, refers_to: tuple[str, ...], older: str) -> None:
        """Begin the snapshot; `older`: the snapshot by which unchanged tables are known.

        Their files may lie in folders of snapshots that were forgotten: they stay as long as that
        one is there.
        """
        folders = (older, *refers_to) if refers_to else ()
        there = self._context.snapshots.begin(
            name, PendingSnapshot(self._job.id, tuple(sorted(set(folders))))
        )
        if refers_to and older not in there:
            raise SnapshotError(
                f"the snapshot {older}, which the new one was to refer to, was forgotten meanwhile",
                hint=f"`sluice jobs cancel {self._job.id}`, and make the snapshot again",
            )

    def _publish(
        self, name: str, plan: SnapshotPlan, tables: tuple[SnapshotTable, ...]
    ) -> ArchiveSnapshot:
        self._run.look()
        self._run.check_order()
        now = time.time_ns() // 1_000_000
        snapshot = ArchiveSnapshot(
            name,
            plan.ts,
            plan.schema_version,
            plan.cluster_id,
            now,
            plan.made_from,
            plan.schemas,
            tables,
        )
        return self._context.snapshots.publish(snapshot)


def _progress(stripes: list[ReadRange]) -> Mapping[str, TableProgress]:
    found: dict[str, TableProgress] = {}
    for stripe in stripes:
        name = stripe.place.table.full_name
        before = found.get(name, TableProgress())
        found[name] = TableProgress(
            JobCounts(), before.bytes_in_all + stripe.bytes, before.chunks_in_all + 1
        )
    return found
