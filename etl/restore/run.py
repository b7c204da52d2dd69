"""A run of a restore's job: what is done, stage by stage.

Each finds what a process before this one has done.

1. what is landed and not archived is archived; what is to be replaced is set aside:
   `sluice.etl.restore.scratch`
2. the snapshot is loaded, as a bootstrap does it: tables, rows, indexes, the checkpoint:
   `sluice.etl.restore.stages`
3. the archive is applied from there, as replication does it, from checkpoint to checkpoint:
   `sluice.etl.restore.stages`
4. what wasn't asked for goes, views and sequences come; every table is verified
5. the result is written down; then the scratch database goes, and with it what was replaced
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sluice.etl.apply import ReplayRange
from sluice.etl.changes.rules import filter_for_tables
from sluice.etl.copy import CopyProgressCounts
from sluice.etl.copy.copy_run import CopyTarget
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.sources import BootstrapSpec
from sluice.etl.copy.staged_loads import remove_files
from sluice.etl.copy.statements import create_object, scoped_statement
from sluice.etl.downstream import CheckpointTable, MySQLSession
from sluice.etl.downstream.ddl import ALREADY_EXISTS, DdlExecutor
from sluice.etl.history.archive import archive_through
from sluice.etl.restore.emptied_tables import check_overrides, overridden_commits
from sluice.etl.restore.estimate import TimeEstimate
from sluice.etl.restore.executor import RestoreExecutor
from sluice.etl.restore.lineage import Name
from sluice.etl.restore.plan import RestorePlan, RestoreSummary, RestoreVerification
from sluice.etl.restore.request import RestoreRequest
from sluice.etl.restore.scratch import ScratchSchema, scratch_schema_name
from sluice.etl.restore.stages import LaterWork, LoadSnapshot, replay_log
from sluice.etl.restore.target_inspection import inspect_target
from sluice.etl.restore.verify import verify_restored
from sluice.etl.settings import Settings
from sluice.relay.archive import Archive, ArchiveLog
from sluice.relay.jobs import (
    CANCELLED,
    DONE,
    PAUSE,
    PAUSED,
    Job,
    JobRun,
    Jobs,
    StopRequested,
)
from sluice.relay.storage import open_storage
from sluice.relay.url import folder_of
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table

__all__ = ["RestoreRun"]

log = logging.getLogger("sluice.restore")

_LOCK_TIMEOUT_S = 60.0
_RESULT_FILE = "restored.json"
_MIN_SAMPLE_ROWS = 200_000
"""The fewest rows or changes from which a machine's pace is measured."""


class RestoreRun:
    """One run, in this process.

    Raises RestoreError, VerifyError, LeaseLostError, and as loading and applying do.
    """

    def __init__(
        self,
        settings: Settings,
        job: Job,
        run: JobRun,
        plan: RestorePlan,
        on_progress: Callable[[CopyProgressCounts], None],
    ) -> None:
        self._settings = settings
        self._job = job
        self._run = run
        self._plan = plan
        self._on_progress = on_progress
        self._request = request = RestoreRequest.from_json(job.spec.asked)
        own = request.settings(settings, scratch_schema_name(job.spec.token), plan.names)
        # What workers hand over lies where no other job looks.
        self._own = replace(
            own, relay=replace(own.relay, url=folder_of(settings.relay.url, f"restores/{job.id}"))
        )
        self._session = MySQLSession(self._own.downstream)
        self._checkpoint = CheckpointTable.from_settings(
            self._session, self._own.downstream, plan.cluster_id
        )
        self._scratch = ScratchSchema(self._session, self._own.downstream.checkpoint_schema)
        self._began = self._stage_began = time.monotonic()
        self._summary = RestoreSummary(job.id, plan.to, plan.until, len(plan.asked))
        self._stages: dict[str, float] = {}
        self._later = LaterWork()

    def whole(self, ways: RestoreExecutor) -> RestoreSummary:
        """Run the whole job, up to where it is ordered to stop."""
        try:
            self._connect()
            result = self._load_result()
            if result is None:
                self._archive()
                self._load(ways)
                self._apply(ways)
                self._end()
                self._verify(ways)
                result = self._save_result()
            return self._finish(result)
        except StopRequested:
            return self._stop()
        finally:
            self._session.close()

    def cancel(self) -> RestoreSummary:
        """Cancel the restore: remove what it made, put back what it replaced."""
        try:
            return self._cancel()
        finally:
            self._session.close()

    # Stages

    def _connect(self) -> None:
        self._set_activity("connecting")
        self._session.connect()
        if self._load_result() is None:
            self._checkpoint.create()
            self._checkpoint.writer_lock().acquire(self._session, _LOCK_TIMEOUT_S)
            self._scratch.begin(self._plan.replaced)

    def _archive(self) -> None:
        """Archive everything that is to be applied."""
        last = Archive.open(self._settings.archive_url).last()
        if last is None or last.hi < self._plan.until:
            self._set_activity("archiving what is landed")
            stopped = lambda: self._run.order is not None or self._run.is_lost  # noqa: E731
            archive_through(self._settings, self._plan.until, stop=stopped)
            self._set_activity("archiving what is landed")
            self._stage("archive")

    def _load(self, ways: RestoreExecutor) -> None:
        plan = self._plan
        wanted = {planned.table.schema_name for planned in plan.copy.tables}
        tables = tuple(planned.table for planned in plan.copy.tables)
        schemas = tuple(schema for schema in plan.schemas if schema.name in wanted)
        definitions = SourceSchema(plan.since, plan.copy.schema_version, schemas, tables)
        place: CopyTarget = self._own, definitions, self._checkpoint, self._session
        made = LoadSnapshot(
            place, (plan.copy, BootstrapSpec({})), self._job, self._run, self._on_progress
        )
        made.later = self._later = self._later_work(made)
        source = SnapshotSource(self._settings.archive_url, plan.snapshot, plan.since)
        with ways.loads(self._own, source) as make:  # not called if there is no snapshot
            made.load(make)
        self._summary = replace(
            self._summary, snapshot_rows=made.progress.rows, warnings=tuple(made.tables.warnings)
        )
        self._stage("load")

    def _apply(self, ways: RestoreExecutor) -> None:
        self._set_activity("applying row changes")
        self._session.close()  # applying has its own
        plan = self._plan
        check_overrides(plan, overridden_commits(self._settings, plan.since, plan.until))
        windows = ArchiveLog.open(self._settings.archive_url, plan.ids)
        windows.pipeline = self._settings.open_relay().pipeline
        with ways.steps(self._own, windows.url, frozenset(plan.without_rows)) as prepare:
            done = replay_log(
                windows,
                ReplayRange(plan.since, plan.until),
                own=self._own,
                cluster_id=plan.cluster_id,
                job=self._job,
                run=self._run,
                prepare=prepare,
                cost=plan.cost,
                later=self._later,
            )
        warnings = (*self._summary.warnings, *done.warnings)
        self._summary = replace(
            self._summary, changes=done.changes, ddls=done.ddls, warnings=warnings
        )
        self._stage("apply")
        if done.checkpoint < plan.until:
            self._run.look()
            self._run.check()
            raise StopRequested(self._run.order)

    def _end(self) -> None:
        self._set_activity("removing what wasn't asked for")
        self._session.connect()
        self._checkpoint.writer_lock().acquire(self._session, _LOCK_TIMEOUT_S)
        drop_unrequested(
            self._scratch, self._targets(self._plan.names), self._targets(_names(self._plan))
        )
        self._set_activity("making views and sequences")
        warnings = create_views_and_sequences(
            self._session, self._own, self._plan.others, self._plan.until
        )
        self._summary = replace(self._summary, warnings=(*self._summary.warnings, *warnings))

    def _verify(self, ways: RestoreExecutor) -> None:
        if not self._request.verify:
            self._summary = replace(
                self._summary,
                verified=RestoreVerification(note="nothing was verified, as was asked for"),
            )
            return
        found = verify_restored(
            self._settings, self._own, self._plan, self._set_activity, ways.past()
        )
        self._summary = replace(self._summary, verified=found)
        self._stage("verify")

    def _finish(self, result: RestoreSummary) -> RestoreSummary:
        """Record that the tables are as requested, and remove the rest."""
        self._run.check()
        self._clean()
        self._scratch.drop(self._plan.new_schemas)
        self._run.end(DONE, result=result.to_json())
        return result

    # Orders

    def _stop(self) -> RestoreSummary:
        self._run.look()
        if self._run.order == PAUSE:
            self._run.end(PAUSED)
            return replace(self._summary, state=PAUSED)
        return self._cancel()

    def _cancel(self) -> RestoreSummary:
        self._run.doing("taking back what was restored")
        self._session.connect()
        left: list[str] = []
        # it is done, and the order came too late: what was asked for is there
        if (result := self._load_result()) is not None:
            return self._finish(result)
        if self._scratch.exists():
            self._checkpoint.writer_lock().acquire(self._session, _LOCK_TIMEOUT_S)
            plan = self._plan
            names = {*plan.names, *((table.schema_name, table.name) for table in plan.others)}
            left = self._scratch.take_back(
                self._targets(sorted(names)), plan.replaced, plan.new_schemas
            )
        self._clean()
        summary = replace(self._summary, state=CANCELLED, left=tuple(left))
        hint = "look at these tables, and remove what is not needed" if left else ""
        self._run.end(CANCELLED, message="; ".join(left), hint=hint, result=summary.to_json())
        return summary

    # Inside

    def _set_activity(self, what: str) -> None:
        """Record the next activity. Raises StopRequested if the run is to end, LeaseLostError."""
        self._run.look()
        self._run.check_order()
        self._run.doing(what)
        self._on_progress(CopyProgressCounts(doing=what))

    def _later_work(self, made: LoadSnapshot) -> LaterWork:
        """Return what comes after loading, by the pace of the last restore."""
        copied = sum(made.tables.index_work(planned) for planned in made.plan.tables)
        copied += made.plan.bytes
        jobs = Jobs.for_pipeline(self._settings.open_relay()).list()
        cost = self._plan.cost
        pace = TimeEstimate.from_last_restore(jobs)
        verifying_s = pace.verifying_s(cost) if self._request.verify else 0.0
        return LaterWork(cost.log_bytes, pace.applying_work(cost, copied), verifying_s)

    def _stage(self, name: str) -> None:
        now = time.monotonic()
        self._stages[name] = round(now - self._stage_began, 3)
        self._stage_began = now

    def _targets(self, names: tuple[Name, ...] | list[Name]) -> list[Name]:
        return [(self._request.target_schema(schema), table) for schema, table in names]

    def _clean(self) -> None:
        remove_files(open_storage(self._own.relay.url))

    def _load_result(self) -> RestoreSummary | None:
        """Load the result, if the tables are as requested."""
        try:
            data = self._storage().read(self._job.files.path(_RESULT_FILE))
        except FileNotFoundError:
            return None
        return RestoreSummary.from_json(json.loads(data))

    def _save_result(self) -> RestoreSummary:
        self._run.check()
        seconds = round(time.monotonic() - self._began, 3)
        summary = replace(self._summary, seconds=seconds, stages_s=dict(self._stages))
        summary = replace(summary, pace=_measured_rates(summary))
        data = json.dumps(summary.to_json()).encode()
        self._storage().replace(self._job.files.path(_RESULT_FILE), data)
        return summary

    def _storage(self) -> Any:
        return open_storage(self._settings.relay.url)


def _names(plan: RestorePlan) -> list[Name]:
    return [(table.schema_name, table.name) for table in (*plan.asked, *plan.others)]


def _measured_rates(summary: RestoreSummary) -> dict[str, float]:
    """Return how long a row and a change took, where there were enough of them."""
    found: dict[str, float] = {}
    if summary.snapshot_rows >= _MIN_SAMPLE_ROWS:
        found |= {"a_row": summary.stages_s["load"] / summary.snapshot_rows, "a_byte": 0.0}
    if summary.changes >= _MIN_SAMPLE_ROWS:
        found["a_change"] = summary.stages_s["apply"] / summary.changes
    inside = summary.snapshot_rows + summary.changes
    if summary.verified.rows and inside >= _MIN_SAMPLE_ROWS:
        found["verified"] = (
            max(0.0, summary.stages_s["verify"] - TimeEstimate().a_verification) / inside
        )
    return found


def drop_unrequested(scratch: ScratchSchema, made: Sequence[Name], asked: Sequence[Name]) -> None:
    """Drop what was `made` and isn't `asked` for. Raises DownstreamError."""
    requested = {(folded(schema), folded(name)) for schema, name in asked}
    scratch.remove([name for name in made if (folded(name[0]), folded(name[1])) not in requested])


def create_views_and_sequences(
    session: MySQLSession, own: Settings, others: Sequence[Table], ts: int
) -> list[str]:
    """Make views and sequences; what couldn't be made, in words.

    Raises DownstreamError, DdlError.
    """
    if not others:
        return []
    filters = filter_for_tables((table.schema_name, table.name) for table in others)
    executor = DdlExecutor(session)
    warnings: list[str] = []
    for table in others:
        place = own.routes.target(table.schema_name, table.name)
        wanted = scoped_statement(create_object(table, ts), filters, own.routes)
        if wanted is None or inspect_target(session, [(place.schema, place.table)]).tables:
            continue
        executor.fingerprint(wanted)
        warnings += [one for one in executor.execute(wanted) if not one.endswith(ALREADY_EXISTS)]
        session.commit()
    return warnings
