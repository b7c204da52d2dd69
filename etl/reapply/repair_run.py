"""A repair with all that belongs to it: what hinders it, and a run of the job from its begin to its end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict

import pyarrow as pa

from etl.apply import Prepare, SparkPreparer
from etl.backfill import DownstreamSide, sweep
from etl.ownership import downstream_name
from etl.prepare import BatchDocument, PrepareOptions
from etl.reapply.errors import ReapplyError
from etl.reapply.repair import OrderedError, Places, Repair
from etl.reapply.request import Request
from etl.reapply.summary import ReapplySummary, consumer_of
from etl.reapply.touched import SHAPE, TouchedRows
from etl.reapply.window_range import WindowRange, look
from etl.rules import RouteError
from etl.settings import Downstream, Settings
from etl.shapes.identity import locating_columns
from etl.spark.place import Place
from relay import RelayError
from relay.jobs import CANCEL, CANCELLED, DONE, OVER, PAUSED, Job, Run
from relay.retention import Consumers
from upstream import PDClient
from upstream.schema import Table
from upstream.table_name import full_name


def newest_options(settings: Settings, request: Request) -> PrepareOptions:
    """How windows are prepared for a repair: under the upstream's names, and all kinds of changes."""
    own = request.settings(settings)
    return PrepareOptions(SHAPE, filters=own.filters, ignored_ts=own.ignored_ts)


def repaired_tables(settings: Settings, request: Request) -> tuple[str, ...]:
    """The tables downstream that the request is about. Raises RouteError, relay errors."""
    own = request.settings(settings)
    found = look(settings.open_relay(), request.since, request.until, own.filters)
    goals = (own.routes.target(table.schema_name, table.name) for table in found.tables.values())
    return tuple(sorted({full_name(goal.schema, goal.table) for goal in goals}))


def repair_problems(settings: Settings, request: Request, found: WindowRange) -> list[str]:
    """What hinders a repair, beside what the range itself has. Raises DownstreamError."""
    if not isinstance(settings.target, Downstream):
        return ["[downstream] is no database: name another place with --to"]
    if not request.tables:
        return ["which tables? --table SCHEMA.TABLE says whose rows are repaired; or name another place with --to"]
    relay = settings.open_relay()
    told = [problem for table in found.tables.values() if (problem := _unfit(settings, table))]
    control = relay.control()
    if control.land_paused or control.apply_paused or control.apply_until_ts is not None:
        told.append("the pipeline is paused, or is to stop at a time; rows are written while it runs: `sluice resume`")
    try:
        TouchedRows(relay, _nothing, request.settings(settings).filters, request.since, request.until).gather()
    except (ReapplyError, RelayError) as error:
        told.append(str(error))
    return told


def repair_notes(settings: Settings) -> list[str]:
    """What to know before a repair begins. Raises relay errors."""
    return [
        f"{failure.what} has stopped: {failure.said}. Rows are written while it runs: begin the repair, then have it go"
        " on"
        for failure in settings.open_relay().failures.list()
    ]


def _nothing(windows: BatchDocument) -> Iterator[pa.RecordBatch]:
    """Only the tables and the DDL of windows are looked at."""
    return iter(())


def _unfit(settings: Settings, table: Table) -> str:
    """Why rows of a table can't be repaired, "" if they can."""
    name, filters = table.full_name, settings.filters
    again = f"copy it again: `sluice backfill --table {shlex.quote(name)}`"
    if not locating_columns(table):
        return f"{name} has no key: which of its rows were touched can't be told; {again}"
    if filters.ignored_row_kinds(table.schema_name, table.name) or filters.may_keep_rows(table.schema_name, table.name):
        return f"{name} isn't downstream as it is upstream: [filter] leaves some changes out"
    try:
        target = settings.routes.target(table.schema_name, table.name)
    except RouteError as error:
        return str(error)
    return f"{name} is merged with other tables in {full_name(target.schema, target.table)}" if target.is_merged else ""


def run_repair(settings: Settings, job: Job, run: Run, prepare: Prepare | None) -> ReapplySummary:
    """Do it, or go on with it. `prepare`: as `newest_options` say; Spark by default. Raises as `Repair.work`."""
    request, relay = Request.from_json(job.spec.asked), settings.open_relay()
    began, to = time.monotonic(), downstream_name(settings.target)
    consumers = Consumers(relay)
    consumers.note(consumer_of(job.id), request.since, f"the job {job.id}, to {to}")
    first = relay.first()
    if first is None or first.lo > request.since:
        raise ReapplyError(f"the relay log {relay.url} no longer holds what was committed after {request.since}")
    with ExitStack() as stack:
        if prepare is None:
            options, role = newest_options(settings, request), f"reapply {job.id}"
            prepare = SparkPreparer(Place(settings.spark, role, settings.relay.url), options)
            stack.callback(prepare.close)
        touched = TouchedRows(relay, prepare, request.settings(settings).filters, request.since, request.until)
        pd = PDClient(settings.upstream.pd_urls, tls=settings.upstream.tls())
        stack.callback(pd.close)
        downstream = DownstreamSide(settings, first.cluster_id)
        stack.callback(downstream.close)
        sweep(relay, downstream)
        repair = Repair(request, touched, Places(relay, downstream, pd.tso), job.id, run)
        state = _worked(repair, run)
        counts = {name: dict(count) for name, count in repair.counts.items()}
        rows = sum(count["rows"] for count in counts.values())
        through = request.until if state == DONE else request.since
        summary = ReapplySummary(
            job.id, to, request.since, request.until, through, 0, 0, 0, rows, 0, round(time.monotonic() - began, 3),
            repaired=counts, is_repair=True,
        )  # fmt: skip
        run.end(state, result=asdict(summary))
        if state in OVER:
            consumers.forget(consumer_of(job.id))
        sweep(relay, downstream)
    return summary


def _worked(repair: Repair, run: Run) -> str:
    try:
        repair.work()
    except OrderedError:
        if run.order != CANCEL:
            return PAUSED
        repair.let_go()
        return CANCELLED
    return DONE
