"""Jobs of the kind `bootstrap`, and their Airflow tasks.

One task plans, one makes tables, several copy side by side, one finishes. The tasks of a DAG run
are a group that runs the job together; each goes on where it was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sluice.etl.copy.bootstrap import KIND
from sluice.etl.copy.bootstrap_run import BootstrapSummary, CopyProgressCounts
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.plan import CopyPlan
from sluice.etl.copy.run import BootstrapSession, cancel_bootstrap, plan_bootstrap, resume_bootstrap
from sluice.etl.copy.sources import BootstrapRequest
from sluice.etl.display_units import counted
from sluice.etl.settings import Settings
from sluice.etl.tasks.form_fields import bootstrap_request
from sluice.etl.tasks.job_kinds import JobKind, ShowProgress, begin, requester
from sluice.relay.jobs import CANCELLED, PAUSED, Job, Jobs, NotDoneError, Runner

__all__ = ["BootstrapKind", "copy_share", "finish", "prepare"]

log = logging.getLogger("sluice.copy")

_LOG_INTERVAL_S = 5.0


class BootstrapKind(JobKind):
    """The steps of a bootstrap; its DAG has tasks of its own, see below."""

    name = KIND
    shows_counts = True

    def request(self, settings: Settings, form: Mapping[str, Any]) -> BootstrapRequest:
        return bootstrap_request(form, "")

    def find(self, settings: Settings, request: BootstrapRequest) -> None:
        """Leave it to `create`, which refuses another request while a bootstrap is unfinished."""

    def plan(self, settings: Settings, request: BootstrapRequest) -> CopyPlan:
        return plan_bootstrap(settings, request)

    def saved_plan(self, document: Mapping[str, Any]) -> CopyPlan:
        return CopyPlan.from_json(document)

    def blocked(self, problems: Iterable[str]) -> CopyError:
        return CopyError("\n".join(problems))

    def create(self, settings: Settings, request: BootstrapRequest, by: str) -> Job:
        request = replace(request, by=by)
        with BootstrapSession.from_request(settings, request) as session:
            return session.begin(request)

    def run(
        self, settings: Settings, job: Job, runner: Runner, show: ShowProgress
    ) -> BootstrapSummary:
        return resume_bootstrap(settings, job, runner, show)

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> Iterable[str]:
        return self.lines(cancel_bootstrap(settings, job, runner))

    def lines(self, summary: BootstrapSummary) -> Iterator[str]:
        yield from (f"note     {warning}" for warning in summary.warnings)
        if summary.state == CANCELLED:
            yield from (f"stays    {line}" for line in summary.left)
            but = ", but for what is named" if summary.left else ""
            yield f"cancelled: what was copied is taken back{but}"
            return
        if summary.state == PAUSED:
            yield "paused: `sluice jobs resume`, or the same command, goes on with it"
            return
        rate = summary.rows / max(summary.seconds, 1e-3)
        yield (
            f"{counted(summary.tables, 'table')}, {summary.rows_there:,} rows are downstream;"
            f" {counted(summary.rows, 'row')} and {summary.bytes / 1e6:,.1f} MB in"
            f" {summary.seconds:,.1f} s ({rate:,.0f} rows/s). The checkpoint is at {summary.ts}:"
            " replication goes on from there"
        )


def prepare(
    settings: Settings, wanted: str | Mapping[str, Any], tasks: int, run_id: str
) -> list[dict[str, Any]]:
    """Make the tables, and return what each `copy_share` takes, at most `tasks` shares.

    `wanted`: the job's id, or the form of a job that is to begin now. Raises as
    `sluice.etl.copy.run_bootstrap`.
    """
    name = wanted if isinstance(wanted, str) else begin(settings, KIND, wanted, run_id)["job"]
    job = _job(settings, name)
    with (
        BootstrapSession.from_job(settings, job) as work,
        job.run(_runner("prepare", run_id)) as run,
    ):
        work.hold_gc()
        work.register()
        made = work.run_of(job, run, _log_progress(job))
        made.prepare()
        shares = max(1, min(tasks, len(made.plan.chunks)))
        return [{"job": name, "share": n, "of": shares} for n in range(shares)]


def copy_share(settings: Settings, share: Mapping[str, Any], run_id: str) -> dict[str, int]:
    """Copy a share of the chunks, then what others have left: what this process copied.

    Ends early if the job is to pause, or to be given up: `finish` does so. Raises LeaseLostError,
    and as `sluice.etl.copy.run_bootstrap`.
    """
    job = _job(settings, share["job"])
    name = f"copy {share['share'] + 1} of {share['of']}"
    with (
        BootstrapSession.from_job(settings, job, with_schema=False) as work,
        job.join(_runner(name, run_id)) as run,
    ):
        work.hold_gc()
        work.register()
        done = work.run_of(job, run, _log_progress(job)).copy(
            work.loads(), share["share"], share["of"]
        )
        return {"rows": done.rows, "chunks": done.chunks}


def finish(settings: Settings, name: str, run_id: str) -> dict[str, Any]:
    """Do the work after the rows, write the checkpoint, and return the job's result.

    Raises NotDoneError if the job is paused or given up instead, LeaseLostError, and as
    `sluice.etl.copy.run_bootstrap`.
    """
    job = _job(settings, name)
    with BootstrapSession.from_job(settings, job) as work:
        with job.join(_runner("finish", run_id)) as run:
            work.hold_gc()
            work.register()
            summary = work.run_of(job, run, _log_progress(job)).finish(work.loads())
        work.release(summary)
    if summary.state == PAUSED:
        raise NotDoneError(
            f"the job {name} is paused, as was ordered",
            hint=(
                f"trigger the DAG with the same values, or `sluice jobs resume {name}`: either"
                " goes on"
            ),
        )
    if summary.state == CANCELLED:
        raise NotDoneError(
            f"the job {name} was given up, as was ordered{_left_text(summary)}",
            hint="trigger the DAG to start over",
        )
    return job.status().to_json()["result"] or {}


def _left_text(summary: BootstrapSummary) -> str:
    return f"; what stays downstream: {'; '.join(summary.left)}" if summary.left else ""


def _job(settings: Settings, name: str) -> Job:
    return Jobs.for_pipeline(settings.open_relay()).get(name)


def _runner(task: str, run_id: str) -> Runner:
    return Runner(f"Airflow's task {task}, run {run_id}", group=requester(run_id))


def _log_progress(job: Job) -> Callable[[CopyProgressCounts], None]:
    """Says in the log, every few seconds, how far the job is."""
    next_s = 0.0

    def say(_: CopyProgressCounts) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _LOG_INTERVAL_S
            log.info("%s: %s", job.id, job.status().progress)

    return say
