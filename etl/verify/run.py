"""Verification as a job: planned, written down, run or gone on with, given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from errors import Signal
from etl.asof import Run as SparkRun
from etl.base.downstream_reader import DownstreamSnapshot, TableChanged
from etl.base.hindrances import left_out
from etl.base.place import BasePlace
from etl.base.unchanged import ids_of
from etl.copy.definitions import Definitions
from etl.copy.errors import CopyError
from etl.copy.gc_hold import GcHold
from etl.copy.tidb_session import TidbAddress
from etl.downstream import MySQLSession
from etl.ownership import Pipeline
from etl.settings import Settings
from etl.verify.comparison import Compared, Comparison, RangeDone
from etl.verify.differences import differences_of, said_last
from etl.verify.downstream_side import DownstreamSide
from etl.verify.errors import VerifyError
from etl.verify.kept import KeptResults
from etl.verify.past import PastCompared, PastSide
from etl.verify.request import AUTO, VerifyRequest
from etl.verify.result import TableResult, VerifySummary
from etl.verify.side import ComparedTable
from etl.verify.tables import LeftOut, compared_tables
from etl.verify.upstream_side import UpstreamSide
from relay.jobs import CANCEL, CANCELLED, DONE, PAUSED, Done, Job, Run, Runner, TableProgress
from relay.verified import ARCHIVE, UPSTREAM, How, Verifications

__all__ = ["KIND", "cancel_verify", "create_verify", "differing_rows", "run_verify"]

log = logging.getLogger("sluice.verify")

KIND = "verify"
EXAMPLES = 20
"""So many rows of a table are named."""
_SAID_LAST = 5
"""Of so many of them the log is asked what it says of the row."""
_TRIES = 5
_SAVE_S = 2.0


class _Ordered(Signal):
    """The job is to pause, or to be cancelled."""


def create_verify(settings: Settings, request: VerifyRequest, by: str) -> Job:
    """Write down that both sides are to be compared; `by` whom it was asked for. Raises VerifyError, errors of
    `BasePlace`.
    """
    request.check()
    if settings.downstream.type != "mysql":
        raise VerifyError(
            f"[downstream] type is {settings.downstream.type}: it can't be read",
            way_out="`sluice reapply` and the sink's own readers tell what was written there",
        )
    if request.how == UPSTREAM and not settings.upstream.sql_host:
        raise VerifyError(
            "[upstream] sql-host is missing: it says where TiDB is read", way_out="or verify --how archive"
        )
    with BasePlace.of(settings) as place:
        job = place.jobs.create(KIND, request.to_json(), place.touches, by)
        job.keep_plan({"how": request.how, "tables": list(request.tables)})
        return job


def run_verify(settings: Settings, job_id: str, runner: Runner, *, spark: SparkRun | None = None) -> VerifySummary:
    """Run a job that `create_verify` made, or go on with it, until it is over, or an operator pauses it. `spark`: where
    the past is computed. Raises VerifyError, BaseError, CopyError, DownstreamError, PDError, TiKVError, RelayError,
    JobRunsError, LeaseLostError, SparkError, OSError.
    """
    with BasePlace.of(settings) as place:
        job = place.jobs.get(job_id)
        job.kept_plan(KIND)  # before what was asked is understood: it may be another kind's
        request = VerifyRequest.from_json(job.spec.asked)
        with job.run_as(runner) as run:
            return _Verifying(place, job, run, request, spark).verified()


def cancel_verify(settings: Settings, job_id: str, runner: Runner) -> None:
    """Give up a job that no process runs. Raises as `run_verify`."""
    with BasePlace.of(settings) as place, place.jobs.get(job_id).run_as(runner) as run:
        run.end(CANCELLED)


class _Verifying:
    """A run of the job."""

    def __init__(self, place: BasePlace, job: Job, run: Run, request: VerifyRequest, spark: SparkRun | None) -> None:
        self._place, self._job, self._run, self._request, self._spark = place, job, run, request, spark
        self._settings = place.settings
        self._kept = KeptResults(place.relay.storage, job.id)
        self._results = self._kept.load()
        self._left: dict[str, LeftOut] = {}
        self._notes: dict[str, None] = {}
        self._how: How = UPSTREAM
        self._ts = 0
        self._began = self._saved = time.monotonic()

    def verified(self) -> VerifySummary:
        """Compare all that is asked for, or do as was ordered."""
        try:
            self._compare()
        except _Ordered:
            self._kept.save(self._results)
            state = CANCELLED if self._run.order == CANCEL else PAUSED
            self._run.end(state, said="" if state == CANCELLED else "paused by an order")
            return self._summary(state)
        summary = self._summary(DONE)
        self._run.look()
        self._run.check()
        Verifications(self._place.relay).note(summary.run())
        self._run.end(DONE, result=summary.totals())
        return summary

    def _summary(self, state: str) -> VerifySummary:
        tables = tuple(sorted(self._results.values(), key=lambda table: table.name))
        return VerifySummary(
            self._job.id, state, self._how, self._ts, time.time_ns() // 1_000_000,
            round(time.monotonic() - self._began, 3), tables, tuple(self._left.values()), tuple(self._notes),
        )  # fmt: skip

    def _compare(self) -> None:
        """Until every table is compared: what a DDL changes meanwhile is looked at again, at a later checkpoint."""
        for attempt in range(_TRIES):
            before = len(self._results)
            self._check_order()
            self._run.doing("waiting for a checkpoint to read at")
            changed = self._look()
            if not changed:
                return
            for name, why in changed.items():
                log.info("%s is looked at again: %s", name, why)
            if attempt == _TRIES - 1 and len(self._results) == before:
                break
        for name, why in changed.items():
            self._results[name] = TableResult(name, "", self._ts, problem=f"never steady for so long: {why}")

    def _look(self) -> dict[str, str]:
        """Compare what isn't compared yet at one checkpoint; the tables that a DDL has changed, and why."""
        with ExitStack() as stack:
            snapshot = stack.enter_context(
                DownstreamSnapshot.open(
                    self._settings.downstream,
                    self._place.cluster.pd.cluster_id,
                    max(self._settings.apply.worker_count, 1),
                )
            )
            self._ts = snapshot.checkpoint.commit_ts
            definitions = self._place.cluster.definitions(self._ts)
            self._notes |= dict.fromkeys(left_out(self._settings, self._place.relay, self._ts))
            if not self._with_tidb(stack):
                return self._with_the_past(snapshot, definitions)
            return self._with_upstream(snapshot, definitions)

    def _with_tidb(self, stack: ExitStack) -> bool:
        """Whether TiDB is asked; what it had at the checkpoint is held then."""
        if self._request.how == ARCHIVE:
            return False
        if not self._settings.upstream.sql_host:
            self._notes["[upstream] sql-host doesn't say where TiDB serves SQL"] = None
            return False
        service = f"sluice-{Pipeline.of(self._settings).id}-{self._job.id}"
        hold = GcHold(self._place.cluster.pd, service, self._ts)
        try:
            stack.enter_context(hold)
        except CopyError as error:
            if self._request.how != AUTO:
                raise
            self._notes[f"compared with the archive: {error}"] = None
            return False
        stack.callback(hold.release)
        return True

    # With TiDB

    def _with_upstream(self, snapshot: DownstreamSnapshot, definitions: Definitions) -> dict[str, str]:
        self._how = UPSTREAM
        down = DownstreamSide(snapshot, f"{self._settings.downstream.host}:{self._settings.downstream.port}")
        up = UpstreamSide(TidbAddress.of(self._settings.upstream), self._ts, snapshot.sessions)
        tables = self._tables(definitions)
        changed: dict[str, str] = {}
        differing: list[Compared] = []
        said = Comparison(up, down).run(tables, self._go_on)
        for one in said:
            if isinstance(one, RangeDone):
                self._did(one.table.full_name, Done(one.rows, int(one.table.bytes * one.part)))
                continue
            self._did(one.table.full_name, Done(chunks=1))
            if one.changed:
                changed[one.table.full_name] = one.changed
            elif one.found.apart is not None or one.found.more:
                differing.append(one)
            else:
                self._take(_result(one, self._ts))
        self._check_order()
        return changed | self._judge(differing)

    def _tables(self, definitions: Definitions) -> list[ComparedTable]:
        """What is to be compared now; what isn't is noted. Raises VerifyError if nothing is asked for that there is."""
        wanted = [
            table.full_name for table in definitions.of_users().tables
            if self._request.wants(table.schema_name, table.name) and table.is_base_table
        ]  # fmt: skip
        if not wanted and self._request.tables:
            raise VerifyError(
                f"the upstream has no table {', '.join(self._request.tables)}",
                way_out="names are `schema.table`, in the upstream's spelling; * and ? stand for others",
            )
        session = MySQLSession(self._settings.downstream)
        session.connect()
        try:
            tables, left = compared_tables(self._settings, definitions, session, set(wanted) - set(self._results))
        finally:
            session.close()
        mended = self._mended(definitions)
        for one in left:
            if one.is_fault:
                self._take(TableResult(one.name, "", self._ts, problem=one.why))
            else:
                self._left[one.name] = one
        for table in tables:
            if why := mended.get(table.table.id):
                self._left[table.full_name] = LeftOut(table.full_name, why)
        found = [table for table in tables if table.table.id not in mended]
        self._run.begin_with(_progress(found, self._results))
        return found

    def _mended(self, definitions: Definitions) -> dict[int, str]:
        """Tables of which rows may be missing until a job has brought them, and why."""
        return {
            table_id: f"rows may be missing until the job {mending.job} has brought them"
            for mending in self._place.relay.appointments.mendings()
            if not self._place.jobs.is_over(mending.job)
            for table_id in mending.tables
        }

    def _judge(self, differing: Iterable[Compared]) -> dict[str, str]:
        """Take what differs, but for tables that a DDL may have touched before they were read: these are returned."""
        found = list(differing)
        if not found:
            return {}
        reached, touched = self._place.ddl_since(self._ts)
        changed: dict[str, str] = {}
        for one in found:
            if touched is None or touched & ids_of(one.table.table):
                changed[one.table.full_name] = f"DDL was committed between {self._ts} and {reached}"
            else:
                self._differs(one)
        return changed

    def _differs(self, one: Compared) -> None:
        result = _result(one, self._ts)
        if one.found.apart is not None:
            self._kept.keep(one.found.apart)
            result = self._explained(result)
        self._take(result)

    def _explained(self, result: TableResult) -> TableResult:
        self._run.doing(f"looking for what was written of {result.name} last")
        told = [said_last(self._settings, one, self._ts) for one in result.examples[:_SAID_LAST]]
        return replace(result, examples=(*told, *result.examples[_SAID_LAST:]))

    # With base and archive

    def _with_the_past(self, snapshot: DownstreamSnapshot, definitions: Definitions) -> dict[str, str]:
        self._how = ARCHIVE
        names = {
            table.full_name for table in definitions.of_users().tables
            if self._request.wants(table.schema_name, table.name) and table.full_name not in self._results
        }  # fmt: skip
        side = PastSide(self._settings, self._ts, self._spark)
        opened = side.open(names.__contains__)
        self._notes |= dict.fromkeys(side.notes)
        for name, why in side.unknown.items():
            self._left[name] = LeftOut(name, why)
        self._run.begin_with({name: TableProgress(chunks_in_all=1) for one in opened for name in one.tables})
        changed: dict[str, str] = {}
        for past in opened:
            try:
                for one in past.compare(self._settings, snapshot, self._doing):
                    self._did(one.table.full_name, Done(one.rows, one.bytes, 1))
                    self._take_past(one, changed)
            except TableChanged as error:
                changed |= {name: str(error) for name in past.tables if name not in self._results}
        return changed

    def _take_past(self, one: PastCompared, changed: dict[str, str]) -> None:
        differences = one.apart.count if one.apart is not None else 0
        if differences or one.more_parts:
            reached, touched = self._place.ddl_since(self._ts)
            if touched is None or touched & ids_of(one.table):
                changed[one.table.full_name] = f"DDL was committed between {self._ts} and {reached}"
                return
        target = self._settings.routes.target(one.table.schema_name, one.table.name)
        result = TableResult(
            one.table.full_name, f"{target.schema}.{target.table}", self._ts, one.rows, one.bytes, differences,
            one.more_parts, one.rows, tuple(differences_of(one.apart, EXAMPLES)) if one.apart is not None else (),
        )  # fmt: skip
        if one.apart is not None and differences:
            self._kept.keep(one.apart)
            result = self._explained(result)
        self._take(result)

    # Both

    def _take(self, result: TableResult) -> None:
        self._results[result.name] = result
        if time.monotonic() - self._saved > _SAVE_S:
            self._saved = time.monotonic()
            self._kept.save(self._results)

    def _did(self, name: str, done: Done) -> None:
        self._run.did(name, done)
        self._run.doing(name)

    def _doing(self, what: str) -> None:
        self._check_order()
        self._run.doing(what)

    def _go_on(self) -> bool:
        self._run.check()
        return self._run.order is None

    def _check_order(self) -> None:
        if not self._go_on():
            raise _Ordered


def differing_rows(settings: Settings, job: str) -> Mapping[str, Any]:
    """The rows that a verification found to differ, `etl.verify.rows_apart.Apart` by the full name of their table.
    Raises RelayError, OSError.
    """
    with BasePlace.of(settings) as place:
        return KeptResults(place.relay.storage, job).apart()


def _result(one: Compared, ts: int) -> TableResult:
    found, table = one.found, one.table
    notes = [*table.notes, *([f"rows are compared here: {table.by_rows}"] if table.by_rows else [])]
    if found.by_rows and found.apart is None and not table.by_rows:
        notes.append(
            f"servers print values of {found.by_rows:,} rows in two ways: these were compared here, and are equal"
        )
    apart = found.apart
    return TableResult(
        table.full_name, table.place.full_name, ts, found.rows, table.bytes, apart.count if apart is not None else 0,
        found.more, found.by_rows, tuple(differences_of(apart, EXAMPLES)) if apart is not None else (),
        notes=tuple(notes),
    )  # fmt: skip


def _progress(tables: Iterable[ComparedTable], done: Mapping[str, TableResult]) -> Mapping[str, TableProgress]:
    found = {
        name: TableProgress(Done(one.rows, one.bytes, 1), one.bytes, 1) for name, one in done.items()
    }  # fmt: skip
    return found | {table.full_name: TableProgress(Done(), table.bytes, 1) for table in tables}
