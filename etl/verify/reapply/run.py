"""Jobs of the kind `reapply`: asked for, run, given up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from sluice.etl.apply import Prepare
from sluice.etl.copy.backfill import BackfillDownstream, remove_orphans
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.settings import Settings
from sluice.etl.verify.errors import ReplayRangeError
from sluice.etl.verify.reapply.into_sink import ReplayIntoSink
from sluice.etl.verify.reapply.plan import make_replay_plan
from sluice.etl.verify.reapply.repair_run import repaired_tables, run_repair
from sluice.etl.verify.reapply.request import ReplayRequest, ReplaySummary, consumer_of
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import (
    CANCELLED,
    Job,
    JobCounts,
    Jobs,
    Runner,
    TableProgress,
    WriteScope,
    with_landed_end,
)


def create_or_resume(settings: Settings, request: ReplayRequest, by: str) -> Job:
    """Return the unfinished job with the same request, else a new one.

    Nothing is done yet. Raises ReplayRangeError for what prevents a new one, JobOverlapError if
    another job writes there, and as `make_replay_plan`.
    """
    relay = settings.open_relay()
    jobs = Jobs.for_pipeline(relay)
    found = jobs.find_open(request.KIND, request.to_json())
    if found is not None:
        return found
    request = with_landed_end(request, relay)
    if problems := make_replay_plan(settings, request).problems:
        raise ReplayRangeError("\n".join(problems))
    to = downstream_name(request.settings(settings).target)
    tables = repaired_tables(settings, request) if request.is_repair else None
    return jobs.create(request.KIND, request.to_json(), WriteScope(to, tables), by)


def run_reapply(
    settings: Settings,
    job: Job,
    runner: Runner,
    *,
    prepare: Prepare | None = None,
    on_progress: Callable[[JobCounts, TableProgress], None] = lambda done, of: None,
) -> ReplaySummary:
    """Run the job, or continue it, until it is done or an operator pauses or cancels it.

    `on_progress` is called with what this process has done, and with the total, behind what is
    durable; it may raise to end it there. `prepare` is Spark by default, see `preparation`.

    Raises ReplayRangeError for what prevents it, SettingsError, JobRunsError, JobError,
    LeaseLostError, and as `sluice.etl.apply.apply_range` or
    `sluice.etl.verify.reapply.row_repair.RowRepair.work`.
    """
    with job.run(runner) as run:
        if ReplayRequest.from_json(job.spec.asked).is_repair:
            return run_repair(settings, job, run, prepare)
        return ReplayIntoSink(settings, job, run, on_progress).run(prepare)


def cancel_reapply(settings: Settings, job: Job, runner: Runner) -> str:
    """Cancel a job that no process runs: its windows may go.

    What it has written stays, as the returned text states. Raises JobRunsError, JobError,
    LeaseLostError, RelayError, OSError.
    """
    relay = settings.open_relay()
    consumers = Consumers(relay)
    to = downstream_name(ReplayRequest.from_json(job.spec.asked).settings(settings).target)
    with job.run(runner) as run:
        message = f"what was written to {to} stays there"
        for repair in relay.aligned_chunks.repairs():
            if repair.job == job.id:
                relay.aligned_chunks.end_repair(repair.name)
        run.end(CANCELLED, message=message)
        consumers.forget(consumer_of(job.id))
    first = relay.first()
    if first is not None and ReplayRequest.from_json(job.spec.asked).is_repair:
        with closing(BackfillDownstream(settings, first.cluster_id)) as downstream:
            remove_orphans(relay, downstream)
    return message
