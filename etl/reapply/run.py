"""Jobs of the kind `reapply`: asked for, run, given up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from etl.apply import Prepare
from etl.backfill import DownstreamSide, sweep
from etl.ownership import downstream_name
from etl.reapply.errors import ReapplyError
from etl.reapply.into_sink import IntoSink
from etl.reapply.plan import make_plan
from etl.reapply.repair_run import repaired_tables, run_repair
from etl.reapply.request import Request
from etl.reapply.summary import KIND, ReapplySummary, consumer_of
from etl.settings import Settings
from relay.jobs import CANCELLED, OVER, Done, Job, Jobs, Runner, TableProgress, Touches
from relay.retention import Consumers


def ask_for(settings: Settings, request: Request, by: str) -> Job:
    """The job that does this: the one that was asked for the same and isn't over, else a new one. Nothing is done yet.
    Raises ReapplyError for what hinders a new one, JobOverlapError if another job writes there, and as `make_plan`.
    """
    relay = settings.open_relay()
    jobs = Jobs.of(relay)
    for job in jobs.list():
        is_open = job.spec.kind == KIND and job.entry().state not in OVER
        if is_open and request.is_same(Request.from_json(job.spec.asked)):
            return job
    request = request.with_end(relay)
    if problems := make_plan(settings, request).problems:
        raise ReapplyError("\n".join(problems))
    to = downstream_name(request.settings(settings).target)
    tables = repaired_tables(settings, request) if request.is_repair else None
    return jobs.create(KIND, request.to_json(), Touches(to, tables), by)


def run_reapply(
    settings: Settings,
    job: Job,
    runner: Runner,
    *,
    prepare: Prepare | None = None,
    on_progress: Callable[[Done, TableProgress], None] = lambda done, of: None,
) -> ReapplySummary:
    """Do what the job was asked for, or go on with it, until it is through or somebody ordered it to pause or to be
    cancelled. `on_progress` is told what this process has done of how much, behind what is durable; it may raise to end
    it there. `prepare` is Spark by default, see `preparation`.

    Raises ReapplyError for what hinders it, SettingsError, JobRunsError, JobError, LeaseLostError, and as
    `etl.apply.apply_past` or `etl.reapply.repair.Repair.work`.
    """
    with job.run_as(runner) as run:
        if Request.from_json(job.spec.asked).is_repair:
            return run_repair(settings, job, run, prepare)
        return IntoSink(settings, job, run, on_progress).run(prepare)


def cancel_reapply(settings: Settings, job: Job, runner: Runner) -> str:
    """Give up a job that no process runs: its windows may go. What it has written stays; says so. Raises JobRunsError,
    JobError, LeaseLostError, RelayError, OSError.
    """
    relay = settings.open_relay()
    consumers = Consumers(relay)
    to = downstream_name(Request.from_json(job.spec.asked).settings(settings).target)
    with job.run_as(runner) as run:
        said = f"what was written to {to} stays there"
        for mending in relay.appointments.mendings():
            if mending.job == job.id:
                relay.appointments.mended(mending.name)
        run.end(CANCELLED, said=said)
        consumers.forget(consumer_of(job.id))
    first = relay.first()
    if first is not None and Request.from_json(job.spec.asked).is_repair:
        with closing(DownstreamSide(settings, first.cluster_id)) as downstream:
            sweep(relay, downstream)
    return said
