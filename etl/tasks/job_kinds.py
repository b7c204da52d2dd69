"""The registry of the kinds of jobs, which the command line, the DAGs and the pages share.

`KINDS` names each kind, the DAG that runs its jobs, and the module of its steps (`JobKind`). DAG
files are parsed all the time, so a kind's module is imported when one of its jobs is at hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.etl.copy import CopyProgressCounts
    from sluice.etl.settings import Settings
    from sluice.relay.jobs import Job, Jobs, JobSpec, Runner

__all__ = [
    "KINDS",
    "JobKind",
    "RegisteredKind",
    "ShowProgress",
    "begin",
    "dag_run_of",
    "job_kind",
    "requester",
    "work",
]

ShowProgress = Callable[["CopyProgressCounts"], None]


@dataclass(frozen=True, slots=True)
class RegisteredKind:
    """A kind of jobs, as it is known before its module is imported."""

    steps: str
    """Module of this room, and its class, with a colon between."""
    command: str
    """Command that asks for such jobs, without `sluice`."""
    dag: str = ""
    """Kind of the DAG that runs such jobs; "" if only the command line does."""


KINDS = {
    "backfill": RegisteredKind("backfill:BackfillKind", "backfill", dag="backfill"),
    "bootstrap": RegisteredKind("bootstrap:BootstrapKind", "bootstrap", dag="bootstrap"),
    "drill": RegisteredKind("drill:DrillKind", "drill", dag="restore_drill"),
    "reapply": RegisteredKind("reapply:ReapplyKind", "reapply"),
    "restore": RegisteredKind("restore:RestoreKind", "restore", dag="restore"),
    "restore-files": RegisteredKind("restore:FilesKind", "restore --files", dag="restore"),
    "snapshot": RegisteredKind("snapshot:SnapshotKind", "snapshot make", dag="snapshot"),
    "verify": RegisteredKind("verify:VerifyKind", "verify", dag="verify"),
}
"""Kinds by name, as jobs' files and ids spell it."""


class JobKind:
    """The steps of one kind of jobs; each kind is a subclass.

    A request has `to_json`; a plan has `lines`, `to_json` and `problems`; a summary is what a run
    did.
    """

    name = ""
    shares_runs = False
    """Whether the processes of one DAG run are one runner, so a retried task need not wait until
    the process before it counts as dead.
    """
    shows_counts = False
    """Whether `run` calls `show`; else the progress is read from the job's files."""

    def not_due(self, settings: Settings) -> str:
        """Return why the DAG's schedule has nothing to do now; "" if it has."""
        del settings
        return ""

    def request(self, settings: Settings, form: Mapping[str, Any]) -> Any:
        """Parse the fields of a form or the options of a command."""
        raise NotImplementedError

    def check_allowed(self, settings: Settings, form: Mapping[str, Any]) -> None:
        """Raise an error for a form that asks for more than the right to trigger the DAG allows."""

    def find(self, settings: Settings, request: Any) -> Job | None:
        """Return the unfinished, planned job that was asked for the same."""
        return _jobs(settings).find_open(self.name, request.to_json(), planned=True)

    def plan(self, settings: Settings, request: Any) -> Any:
        """Return what a job would do; None if a kind has no plan. Writes nothing."""
        del settings, request

    def saved_plan(self, document: Mapping[str, Any]) -> Any:
        """Parse the plan that a job saved; None if a kind has none for people."""
        del document

    def blocked(self, problems: Iterable[str]) -> Exception:
        """Return the error for a plan with problems."""
        raise NotImplementedError

    def create(self, settings: Settings, request: Any, by: str) -> Job:
        """Record the job; restores, reapplies and drills resume an unfinished one instead."""
        raise NotImplementedError

    def run(self, settings: Settings, job: Job, runner: Runner, show: ShowProgress) -> Any:
        """Run the job, or resume it, until it is over or ordered to stop; return its summary."""
        raise NotImplementedError

    def cancel(self, settings: Settings, job: Job, runner: Runner) -> Iterable[str]:
        """Cancel a job that no process runs; return lines that name what stays."""
        raise NotImplementedError

    def lines(self, summary: Any) -> Iterable[str]:
        """Return a summary as lines for people."""
        raise NotImplementedError

    def succeeded(self, summary: Any) -> bool:
        """Return whether the command's exit code is 0."""
        return bool(summary.state == "done")

    def check(self, summary: Any) -> None:
        """Raise an error if a job is done, and what it found fails its DAG run."""


def job_kind(name: str) -> JobKind:
    """Return the steps of a kind. Raises JobError if this version has no such kind."""
    from sluice.relay.jobs import JobError

    if name not in KINDS:
        raise JobError(f"this version of Sluice knows no jobs of the kind {name}")
    module, _, steps = KINDS[name].steps.partition(":")
    found: JobKind = getattr(import_module(f"sluice.etl.tasks.{module}"), steps)()
    return found


def requester(run_id: str) -> str:
    """Return how a job names the DAG run that asked for it."""
    return f"airflow {run_id}"


def dag_run_of(spec: JobSpec) -> tuple[str, str] | None:
    """Return the kind of the DAG, and the id of its run, that asked for a job.

    None if the command line did, or a DAG that does not run such jobs: its name is behind a blank.
    """
    kind, run_id = KINDS.get(spec.kind), spec.by.removeprefix(requester(""))
    if kind is None or not kind.dag or run_id == spec.by or " " in run_id:
        return None
    return kind.dag, run_id


def begin(
    settings: Settings,
    name: str,
    form: Mapping[str, Any],
    run_id: str,
    *,
    scheduled: bool = False,
) -> dict[str, Any]:
    """Plan what a DAG's form says, and find or record its job: {"plan": text, "job": id or None}.

    `form`: the form's fields. The page's Resume adds `job`, the id of the job to resume. There is
    no job if `plan_only` is set, or if the schedule began the run (`scheduled`) and nothing is due:
    then `not_due` says why. Raises JobError for an id that no DAG run asked for, and as the kind's
    `plan` and `create`.
    """
    kind, log = job_kind(name), logging.getLogger(f"sluice.{name}")
    if scheduled and (why := kind.not_due(settings)):
        log.info("%s", why)
        return {"plan": "", "job": None, "not_due": why}
    kind.check_allowed(settings, form)
    # Resume is no request: if Airflow has removed the first run, the form has only its defaults
    plan_only = form.get("plan_only", False) and not form.get("job")
    if form.get("job"):
        job: Job | None = _job_of_dag(settings, name, form["job"])
    else:
        request = kind.request(settings, form)
        job = kind.find(settings, request)
        if job is None and plan_only:
            return {"plan": _logged_plan(log, kind, kind.plan(settings, request)), "job": None}
        job = job or kind.create(settings, request, requester(run_id))
    assert job is not None
    log.info("the job %s%s", job.id, ", which isn't run: only plan" if plan_only else "")
    plan = kind.saved_plan(job.plan() or {}) if job.plan() else None
    return {"plan": _logged_plan(log, kind, plan), "job": None if plan_only else job.id}


def work(
    settings: Settings, name: str, job_id: str | None, run_id: str, *, checked: bool = True
) -> dict[str, Any]:
    """Run a job, or resume it, and return its result; {} without a job.

    Raises NotDoneError if it was paused or cancelled meanwhile, and as the kind's `run`, and if
    `checked` as its `check`.
    """
    from sluice.relay.jobs import DONE, NotDoneError, Runner, log_progress

    if job_id is None:
        return {}
    job, log = _jobs(settings).get(job_id), logging.getLogger(f"sluice.{name}")
    kind = job_kind(job.spec.kind)
    group = requester(run_id) if kind.shares_runs else ""
    with log_progress(job, log):
        summary = kind.run(
            settings, job, Runner(f"Airflow, run {run_id}", group=group), lambda _: None
        )
    for warning in getattr(summary, "warnings", ()):
        log.warning("%s", warning)
    entry = job.entry()
    if entry.state != DONE:
        raise NotDoneError.of(job_id, entry.state)
    if checked:
        kind.check(summary)
    return dict(entry.result or {})


def _job_of_dag(settings: Settings, name: str, job_id: str) -> Job:
    """Return the job to resume.

    It must come from a run of the same DAG: the form's checks (`[restore] targets`) were made for
    these alone.
    """
    from sluice.relay.jobs import JobError

    job = _jobs(settings).get(job_id)
    origin = dag_run_of(job.spec)
    if origin is None or origin[0] != KINDS[name].dag:
        raise JobError(
            f"the job {job.spec} was not asked for by a run of the DAG {KINDS[name].dag}",
            hint=f"`sluice jobs resume {job_id}`",
        )
    return job


def _logged_plan(log: logging.Logger, kind: JobKind, plan: Any) -> str:
    """Log a plan and return its text. Raises the kind's error for problems."""
    if plan is None:
        return ""
    text = "\n".join(plan.lines())
    log.info("the plan:\n%s", text)
    if plan.problems:
        raise kind.blocked(plan.problems)
    return text


def _jobs(settings: Settings) -> Jobs:
    from sluice.relay.jobs import Jobs

    return Jobs.for_pipeline(settings.open_relay())
