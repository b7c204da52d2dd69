"""Verification as a job: planned, written down, run or gone on with, given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.gc_safepoint import GcSafePoint
from sluice.etl.copy.rule_changes import end_outdated
from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ownership import PipelineIdentity
from sluice.etl.history.as_of import PlanExecutor
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.history.snapshots.place import PipelineContext
from sluice.etl.history.snapshots.preflight import excluded_problems
from sluice.etl.history.snapshots.reuse import ids_of
from sluice.etl.settings import Settings
from sluice.etl.verify.against_past import compare_with_archive
from sluice.etl.verify.differences import differences_of
from sluice.etl.verify.downstream_endpoint import DownstreamEndpoint
from sluice.etl.verify.endpoint import ComparedTable
from sluice.etl.verify.errors import VerifyError
from sluice.etl.verify.explain_missing import explain_missing
from sluice.etl.verify.result import AUTO, TableResult, VerifyRequest, VerifySummary
from sluice.etl.verify.result_collector import MAX_EXAMPLES, ResultCollector
from sluice.etl.verify.table_compare import ComparedRange, TableComparer, TableComparison
from sluice.etl.verify.tables import compared_tables, only_downstream
from sluice.etl.verify.upstream_endpoint import UpstreamEndpoint
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
from sluice.relay.verification_log import ARCHIVE, UPSTREAM, VerificationMethod, Verifications
from sluice.tidb.table_name import suggestion

__all__ = ["KIND", "cancel_verify", "create_verify", "run_verify"]

log = logging.getLogger("sluice.verify")

KIND = "verify"
_MAX_ATTEMPTS = 5


def create_verify(settings: Settings, request: VerifyRequest, by: str) -> Job:
    """Create the job that compares both sides; `by`: the requester.

    Raises VerifyError, errors of `PipelineContext`.
    """
    request.check()
    if settings.downstream.type != "mysql":
        raise VerifyError(
            f"[downstream] type is {settings.downstream.type}: it can't be read",
            hint="`sluice reapply` and the sink's own readers show what was written there",
        )
    if request.how == UPSTREAM and not settings.upstream.sql_host:
        raise VerifyError(
            "[upstream] sql-host is missing: it names the TiDB to read",
            hint="or verify --how archive",
        )
    with PipelineContext.open(settings) as place:
        job = place.jobs.create(KIND, request.to_json(), place.touches, by)
        job.save_plan({"how": request.how, "tables": list(request.tables)})
        return job


def run_verify(
    settings: Settings, job_id: str, runner: Runner, *, spark: PlanExecutor | None = None
) -> VerifySummary:
    """Run a job of `create_verify`, or continue it, until it is over or an operator pauses it.

    `spark`: where the past is computed. Raises VerifyError, SnapshotError, CopyError,
    DownstreamError, PDError, TiKVError, RelayError, JobRunsError, LeaseLostError, SparkError,
    OSError.
    """
    with PipelineContext.open(settings) as place:
        job = place.jobs.get(job_id)
        job.plan_of_kind(KIND)  # before what was asked is understood: it may be another kind's
        request = VerifyRequest.from_json(job.spec.asked)
        with job.run(runner) as run:
            return _VerifyJob(place, job, run, request, spark).verified()


def cancel_verify(settings: Settings, job_id: str, runner: Runner) -> None:
    """Give up a job that no process runs. Raises as `run_verify`."""
    with PipelineContext.open(settings) as place, place.jobs.get(job_id).run(runner) as run:
        run.end(CANCELLED)


class _VerifyJob:
    """A run of the job."""

    def __init__(
        self,
        place: PipelineContext,
        job: Job,
        run: JobRun,
        request: VerifyRequest,
        spark: PlanExecutor | None,
    ) -> None:
        self._place, self._job, self._run, self._request, self._spark = (
            place,
            job,
            run,
            request,
            spark,
        )
        self._settings = place.settings
        self._results = ResultCollector(place, job, run)
        self._how: VerificationMethod = UPSTREAM
        self._names: frozenset[str] | None = None
        self._only_downstream: tuple[str, ...] = ()
        self._began = time.monotonic()

    def verified(self) -> VerifySummary:
        """Compare all that is asked for, or do as was ordered."""
        try:
            self._compare()
        except StopRequested:
            self._results.save()
            state = CANCELLED if self._run.order == CANCEL else PAUSED
            self._run.end(state, message="" if state == CANCELLED else "paused by an order")
            return self._summary(state)
        summary = self._summary(DONE)
        self._run.look()
        self._run.check()
        Verifications(self._place.relay).note(summary.run(), self._names)
        equal = {table.name for table in summary.tables if table.equal}
        began_ms = summary.at_ms - round(summary.seconds * 1000)
        end_outdated(self._settings, self._place.relay, equal, began_ms)
        self._run.end(DONE, result=summary.totals())
        return summary

    def _summary(self, state: str) -> VerifySummary:
        tables = tuple(sorted(self._results.results.values(), key=lambda table: table.name))
        return VerifySummary(
            self._job.id, state, self._how, self._results.ts, time.time_ns() // 1_000_000,
            round(time.monotonic() - self._began, 3), tables, tuple(self._results.left.values()),
            tuple(self._results.notes), self._only_downstream,
        )  # fmt: skip

    def _compare(self) -> None:
        """Compare until every table is done.

        A table that a DDL changes meanwhile is compared again, at a later checkpoint.
        """
        for attempt in range(_MAX_ATTEMPTS):
            before = len(self._results.results)
            self._run.check_order()
            self._run.doing("waiting for a checkpoint to read at")
            changed = self._look()
            if not changed:
                return
            for name, why in changed.items():
                log.info("%s is compared again: %s", name, why)
            if attempt == _MAX_ATTEMPTS - 1 and len(self._results.results) == before:
                break
        for name, why in changed.items():
            self._results.results[name] = TableResult(
                name,
                "",
                self._results.ts,
                problem=f"never steady during {_MAX_ATTEMPTS} attempts: {why}",
            )

    def _look(self) -> dict[str, str]:
        """Compare what isn't compared yet at one checkpoint.

        The tables that a DDL has changed, and why.
        """
        with ExitStack() as stack:
            snapshot = stack.enter_context(
                ConsistentReader.open(
                    self._settings.downstream,
                    self._place.cluster.pd.cluster_id,
                    max(self._settings.apply.worker_count, 1),
                )
            )
            self._results.ts = snapshot.checkpoint.commit_ts
            definitions = self._place.cluster.definitions(self._results.ts)
            self._names = frozenset(table.full_name for table in definitions.of_users().tables)
            self._look_for_more(definitions)
            self._results.notes |= dict.fromkeys(
                excluded_problems(self._settings, self._place.relay, self._results.ts)
            )
            if not self._with_tidb(stack):
                self._how = ARCHIVE
                names = [n for n in self._wanted(definitions) if n not in self._results.results]
                return compare_with_archive(self._results, snapshot, names, self._spark)
            return self._with_upstream(snapshot, definitions)

    def _look_for_more(self, definitions: SourceSchema) -> None:
        """Find tables that only the downstream has, if all are wanted and no DDL comes between."""
        if self._request.tables:
            return
        session = MySQLSession(self._settings.downstream)
        session.connect()
        try:
            found = only_downstream(self._settings, definitions, session)
        finally:
            session.close()
        if found:
            _, touched = self._place.ddl_since(self._results.ts)
            self._only_downstream = () if touched is None or touched else tuple(found)

    def _with_tidb(self, stack: ExitStack) -> bool:
        """Return whether TiDB is compared with; its state at the checkpoint is pinned then."""
        if self._request.how == ARCHIVE:
            return False
        if not self._settings.upstream.sql_host:
            self._results.notes["[upstream] sql-host doesn't name a TiDB"] = None
            return False
        service = f"sluice-{PipelineIdentity.from_settings(self._settings).id}-{self._job.id}"
        hold = GcSafePoint(self._place.cluster.pd, service, self._results.ts)
        try:
            stack.enter_context(hold)
        except CopyError as error:
            if self._request.how != AUTO:
                raise
            self._results.notes[f"compared with the archive: {error}"] = None
            return False
        stack.callback(hold.release)
        return True

    # With TiDB

    def _with_upstream(
        self, snapshot: ConsistentReader, definitions: SourceSchema
    ) -> dict[str, str]:
        self._how = UPSTREAM
        down = DownstreamEndpoint(
            snapshot, f"{self._settings.downstream.host}:{self._settings.downstream.port}"
        )
        up = UpstreamEndpoint(
            TidbAddress.from_settings(self._settings.upstream), self._results.ts, snapshot.sessions
        )
        tables = self._tables(definitions)
        changed: dict[str, str] = {}
        differing: list[TableComparison] = []
        results = TableComparer(up, down).run(tables, self._run.should_continue)
        for one in results:
            if isinstance(one, ComparedRange):
                self._results.did(
                    one.table.full_name, JobCounts(one.rows, int(one.table.bytes * one.part))
                )
                continue
            self._results.did(one.table.full_name, JobCounts(chunks=1))
            if one.changed:
                changed[one.table.full_name] = one.changed
            elif one.found.apart is not None or one.found.more:
                differing.append(one)
            else:
                result = _table_result(one, self._results.ts)
                self._results.take(result)
                self._results.add_merged(one.table.table, one.table.others, result)
        self._run.check_order()
        return changed | self._add_differing(differing)

    def _tables(self, definitions: SourceSchema) -> list[ComparedTable]:
        """Return the tables to compare now; excluded ones are noted.

        Raises VerifyError if something is asked for that isn't there.
        """
        wanted = self._wanted(definitions)
        if not self._results.results:  # later a table may have been dropped meanwhile
            _check_names(self._request.tables, definitions)
        session = MySQLSession(self._settings.downstream)
        session.connect()
        try:
            tables, left = compared_tables(
                self._settings, definitions, session, set(wanted) - set(self._results.results)
            )
        finally:
            session.close()
        mended = self._tables_under_repair()
        for one in left:
            if one.is_fault:
                self._results.take(TableResult(one.name, "", self._results.ts, problem=one.why))
            else:
                self._results.left[one.name] = one
        found: list[ComparedTable] = []
        for table in tables:
            why = next((mended[source.id] for source in table.sources if source.id in mended), "")
            self._results.exclude(table.full_name, why) if why else found.append(table)
        self._run.set_totals(_progress(found, self._results.results))
        return found

    def _wanted(self, definitions: SourceSchema) -> list[str]:
        """Return the wanted tables' full names."""
        return [
            table.full_name for table in definitions.of_users().tables
            if self._request.wants(table.schema_name, table.name) and table.is_base_table
        ]  # fmt: skip

    def _tables_under_repair(self) -> dict[int, str]:
        """Return tables of which rows may be missing until a job has brought them, and why."""
        return {
            table_id: f"rows may be missing until the job {repair.job} has brought them"
            for repair in self._place.relay.aligned_chunks.repairs()
            if not self._place.jobs.is_over(repair.job)
            for table_id in repair.tables
        }

    def _add_differing(self, differing: Iterable[TableComparison]) -> dict[str, str]:
        """Add tables that differ; return those that a DDL may have changed before the read."""
        found = list(differing)
        if not found:
            return {}
        reached, touched = self._place.ddl_since(self._results.ts)
        changed: dict[str, str] = {}
        for one in found:
            if touched is None or any(touched & ids_of(source) for source in one.table.sources):
                changed[one.table.full_name] = (
                    f"DDL was committed between {self._results.ts} and {reached}"
                )
            else:
                self._differs(one)
        return changed

    def _differs(self, one: TableComparison) -> None:
        result, apart = _table_result(one, self._results.ts), one.found.apart
        if apart is not None:
            result = explain_missing(self._settings, self._place.cluster.tikv, result, apart)
        self._results.add_differing(result, apart)
        self._results.add_merged(one.table.table, one.table.others, result)


def _check_names(globs: Sequence[str], definitions: SourceSchema) -> None:
    """Raise VerifyError for a name that fits no table of the upstream's."""
    tables = [table for table in definitions.of_users().tables if table.is_base_table]
    for glob in globs:
        asked = VerifyRequest((glob,))
        if not any(asked.wants(table.schema_name, table.name) for table in tables):
            known = [table.full_name for table in tables]
            raise VerifyError(
                f"the upstream has no table {glob}{suggestion(glob, known)}",
                hint="names are `schema.table`, in the upstream's spelling; * and ? stand for"
                " others",
            )


def _table_result(one: TableComparison, ts: int) -> TableResult:
    found, table = one.found, one.table
    notes = [*table.notes, *([f"rows are compared here: {table.by_rows}"] if table.by_rows else [])]
    if found.by_rows and found.apart is None and not table.by_rows:
        notes.append(
            f"servers print values of {found.by_rows:,} rows in two ways: these were compared here,"
            " and are equal"
        )
    apart = found.apart
    return TableResult(
        table.full_name,
        table.place.full_name,
        ts,
        found.rows,
        table.bytes,
        apart.count if apart is not None else 0,
        found.more,
        found.by_rows,
        tuple(differences_of(apart, MAX_EXAMPLES)) if apart is not None else (),
        notes=tuple(notes),
    )


def _progress(
    tables: Iterable[ComparedTable], done: Mapping[str, TableResult]
) -> Mapping[str, TableProgress]:
    found = {
        name: TableProgress(JobCounts(one.rows, one.bytes, 1), one.bytes, 1)
        for name, one in done.items()
    }
    return found | {table.full_name: TableProgress(JobCounts(), table.bytes, 1) for table in tables}
