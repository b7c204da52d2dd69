"""Check and run a repair job, from its begin to its end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict

import pyarrow as pa

from sluice.etl.apply import Prepare, SparkPreparer
from sluice.etl.changes.planning import BatchPayload, PrepareOptions
from sluice.etl.changes.rules import ColumnRuleError, RouteError
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.copy.backfill import BackfillDownstream, remove_orphans
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.settings import Downstream, Settings
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.verify.errors import ReplayRangeError
from sluice.etl.verify.reapply.changed_keys import WRITE_PLAN, ChangedKeys
from sluice.etl.verify.reapply.request import ReplayRequest, ReplaySummary, consumer_of
from sluice.etl.verify.reapply.row_repair import RepairEndpoints, RowRepair
from sluice.etl.verify.reapply.window_range import ReplayWindows, inspect_range
from sluice.relay import RelayError
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    DONE,
    FINAL_STATES,
    PAUSED,
    Job,
    JobRun,
    StopRequested,
)
from sluice.tidb import PDClient
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name


def latest_rows_options(settings: Settings, request: ReplayRequest) -> PrepareOptions:
    """Return how windows are prepared for a repair: upstream names, and all kinds of changes."""
    own = request.settings(settings)
    return PrepareOptions(WRITE_PLAN, filters=own.filters, ignored_ts=own.ignored_ts)


def repaired_tables(settings: Settings, request: ReplayRequest) -> tuple[str, ...]:
    """Return the downstream tables of the request. Raises RouteError, relay errors."""
    own = request.settings(settings)
    found = inspect_range(settings.open_relay(), request.since, request.until, own.filters)
    goals = (own.routes.target(table.schema_name, table.name) for table in found.tables.values())
    return tuple(sorted({full_name(goal.schema, goal.table) for goal in goals}))


def repair_problems(settings: Settings, request: ReplayRequest, found: ReplayWindows) -> list[str]:
    """Return what prevents a repair, beside the range's own problems. Raises DownstreamError."""
    if not isinstance(settings.target, Downstream):
        return ["[downstream] is no database: name another place with --to"]
    if not request.tables:
        return [
            "which tables? Name those to repair with --table SCHEMA.TABLE, or another place with"
            " --to"
        ]
    relay = settings.open_relay()
    problems = [
        problem
        for table in found.tables.values()
        if (problem := _why_not_repairable(settings, table))
    ]
    control = relay.control()
    if control.land_paused or control.apply_paused or control.apply_until_ts is not None:
        problems.append(
            "the pipeline is paused, or is to stop at a time; rows are written while it runs:"
            " `sluice resume`"
        )
    try:
        ChangedKeys(
            relay, _without_rows, request.settings(settings).filters, request.since, request.until
        ).collect()
    except (ReplayRangeError, RelayError) as error:
        problems.append(str(error))
    return problems


def repair_notes(settings: Settings) -> list[str]:
    """Return what to know before a repair begins. Raises relay errors."""
    return [
        f"{failure.what} has stopped: {failure.message}. Rows are written while it runs: begin the"
        " repair, then have it go on"
        for failure in settings.open_relay().failures.list()
    ]


def _without_rows(windows: BatchPayload) -> Iterator[pa.RecordBatch]:
    """Return no rows: only the tables and the DDL of windows are looked at."""
    return iter(())


def _why_not_repairable(settings: Settings, table: Table) -> str:
    """Return why rows of a table can't be repaired, "" if they can."""
    name, filters = table.full_name, settings.filters
    again = f"copy it again: `sluice backfill --table {shlex.quote(name)}`"
    if not lookup_key_columns(table):
        return f"{name} has no key: which of its rows were touched is unknown; {again}"
    if filters.leaves_changes_out(table.schema_name, table.name):
        return f"{name} isn't downstream as it is upstream: [filter] leaves some changes out"
    if rules := filters.row_rules(table.schema_name, table.name):
        return f"{name}: {rules[0].text} selects its rows, which a repair doesn't know; {again}"
    try:
        filters.narrowed(table)
        target = settings.routes.target(table.schema_name, table.name)
    except (ColumnRuleError, RouteError) as error:
        return str(error)
    return (
        f"{name} is merged with other tables in {full_name(target.schema, target.table)}"
        if target.is_merged
        else ""
    )


def run_repair(settings: Settings, job: Job, run: JobRun, prepare: Prepare | None) -> ReplaySummary:
    """Run a repair, or continue it.

    `prepare`: with the options of `latest_rows_options`; Spark by default. Raises as
    `RowRepair.work`.
    """
    request, relay = ReplayRequest.from_json(job.spec.asked), settings.open_relay()
    began, to = time.monotonic(), downstream_name(settings.target)
    consumers = Consumers(relay)
    consumers.note(consumer_of(job.id), request.since, f"the job {job.id}, to {to}")
    first = relay.first()
    if first is None or first.lo > request.since:
        raise ReplayRangeError(
            f"the relay log {relay.url} no longer holds what was committed after {request.since}"
        )
    with ExitStack() as stack:
        if prepare is None:
            options, role = latest_rows_options(settings, request), f"reapply {job.id}"
            prepare = SparkPreparer(
                SessionTarget(settings.spark.for_batch(), role, settings.relay.url), options
            )
            stack.callback(prepare.close)
        touched = ChangedKeys(
            relay, prepare, request.settings(settings).filters, request.since, request.until
        )
        pd = PDClient(settings.upstream.pd_urls, tls=settings.upstream.tls())
        stack.callback(pd.close)
        downstream = BackfillDownstream(settings, first.cluster_id)
        stack.callback(downstream.close)
        remove_orphans(relay, downstream)
        repair = RowRepair(
            request,
            touched,
            RepairEndpoints(relay, downstream, pd.tso, settings.filters),
            job.id,
            run,
        )
        state = _run_repair_job(repair, run)
        counts = {name: dict(count) for name, count in repair.counts.items()}
        rows = sum(count["rows"] for count in counts.values())
        through = request.until if state == DONE else request.since
        summary = ReplaySummary(
            job.id,
            to,
            request.since,
            request.until,
            through,
            0,
            0,
            0,
            rows,
            0,
            round(time.monotonic() - began, 3),
            repaired=counts,
            is_repair=True,
        )
        run.end(state, result=asdict(summary))
        if state in FINAL_STATES:
            consumers.forget(consumer_of(job.id))
        remove_orphans(relay, downstream)
    return summary


def _run_repair_job(repair: RowRepair, run: JobRun) -> str:
    try:
        repair.work()
    except StopRequested:
        if run.order != CANCEL:
            return PAUSED
        repair.release()
        return CANCELLED
    return DONE
