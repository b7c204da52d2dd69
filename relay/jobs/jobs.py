"""The jobs of a relay log: what takes long and what a person asks for.

jobs = Jobs.for_pipeline(relay)
job = jobs.create("bootstrap", asked, WriteScope(downstream), by="ann@host")
with job.run(Runner("sluice bootstrap")) as run:
    run.set_totals(tables)
    try:
        for chunk in chunks:
            run.check_order()
            run.did(table, JobCounts(rows, bytes, 1))
    except StopRequested:
        run.end(CANCELLED if run.order == CANCEL else PAUSED)
    else:
        run.end(DONE, result={...})
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.relay.errors import RelayCorruptError
from sluice.relay.jobs.errors import JobError, JobOverlapError, JobRunsError, LeaseLostError
from sluice.relay.jobs.job_files import JobFiles
from sluice.relay.jobs.lease import CANCEL, PAUSE, JobRun
from sluice.relay.jobs.open_jobs import OpenJobs, open_register
from sluice.relay.jobs.progress import JobProgress, WorkerProgress
from sluice.relay.jobs.runner import Runner
from sluice.relay.jobs.spec import JobSpec, WriteScope, abbreviate, format_ms, parse_spec
from sluice.relay.jobs.state_log import (
    ACTIVE_STATES,
    CANCELLING,
    DONE,
    FINAL_STATES,
    INTERRUPTED,
    PAUSING,
    RUNNING,
    StateEntry,
)
from sluice.relay.storage import Storage

__all__ = ["RESUME", "Job", "JobStatus", "Jobs"]

DEAD_AFTER_S = 20.0
"""Time without a heartbeat after which a process is taken for dead by the next one."""
RESUME = "resume"
_FRESH_MS = 10_000
_BETWEEN_MS = 600_000
"""The longest pause between two tasks of a run, in ms."""
_POLL_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as people see it.

    `state` is one of `sluice.relay.jobs.STATES`; `entry` how it came there.
    """

    spec: JobSpec
    state: str
    entry: StateEntry
    progress: JobProgress

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for scripts."""
        entry = self.entry
        return {
            "id": self.spec.id,
            "kind": self.spec.kind,
            "state": self.state,
            "asked": dict(self.spec.asked),
            "touches": self.spec.touches.to_json(),
            "pipeline": self.spec.pipeline,
            "by": self.spec.by,
            "made_ms": self.spec.made_ms,
            "since_ms": entry.made_ms,
            "since_by": entry.by,
            "runner": None if entry.runner is None else str(entry.runner),
            "message": entry.message,
            "hint": entry.hint,
            "result": entry.result,
            "progress": self.progress.to_json(),
        }


class PipelineRelay(Protocol):
    """A relay log as one of its pipelines sees it."""

    @property
    def storage(self) -> Storage: ...

    @property
    def pipeline(self) -> str: ...


class Jobs:
    """The jobs in a relay log's storage. Every method raises RelayCorruptError, OSError."""

    def __init__(self, storage: Storage, pipeline: str | None = None) -> None:
        """Open the jobs of a relay log.

        `pipeline`: of several that read the relay log, the one to which the jobs belong
        (`sluice.relay.pipeline_folders`); None: all. In either case jobs that touch the same tables
        are kept apart, and no two have the same id.
        """
        self._storage = storage
        self._pipeline = pipeline
        self._register = open_register(storage, self._former)

    @classmethod
    def for_pipeline(cls, relay: PipelineRelay) -> Jobs:
        """Those of the pipeline as which a relay log is open."""
        return cls(relay.storage, relay.pipeline)

    def create(self, kind: str, asked: Mapping[str, Any], touches: WriteScope, by: str) -> Job:
        """Record a new job durably.

        `asked`: the request, in the kind's own terms; `by`: the person or program that asks. Raises
        JobOverlapError if a job that isn't over touches the same; of two concurrent requests one is
        refused.
        """
        token, now = secrets.token_hex(8), time.time_ns() // 1_000_000

        def added(jobs: OpenJobs) -> OpenJobs:
            over = [other.id for other in jobs.open if self._in_the_way(other, touches)]
            return jobs.without(*over).with_job(
                JobSpec(
                    jobs.next_id(kind), kind, asked, touches, by, now, token, self._pipeline or ""
                )
            )

        after = self._register.change(added)
        spec = next(spec for spec in after.open if spec.token == token)
        job = self._job(spec)
        job.files.write_spec()
        return job

    def unfinished(self) -> list[Job]:
        """Return the jobs that aren't over, oldest first, also those that touch nothing."""
        return [job for job in self._unfinished() if self._is_own(job.spec)]

    def find_open(
        self,
        kind: str,
        asked: Mapping[str, Any] | None = None,
        *,
        planned: bool = False,
    ) -> Job | None:
        """Return the oldest unfinished job of a kind that was asked for the same, or None.

        `asked`: as `JobSpec.is_same`; None for whatever was asked. `planned`: only a job whose
        plan is saved.
        """
        found = (
            job
            for job in self.unfinished()
            if job.spec.kind == kind and (asked is None or job.spec.is_same(asked))
        )
        return next((job for job in found if not planned or job.plan() is not None), None)

    def _unfinished(self) -> list[Job]:
        found = (self._job(spec) for spec in self._register.load().open)
        return [job for job in found if job.entry().state not in FINAL_STATES]

    def overlapping(self, touches: WriteScope) -> list[Job]:
        """Return the jobs of all pipelines that aren't over and touch the same, oldest first."""
        return [job for job in self._unfinished() if job.spec.touches.shared(touches) != ()]

    def get(self, name: str) -> Job:
        """Return the job with this id.

        Raises JobError if there is none, or if it is another pipeline's.
        """
        job = self.find(name)
        if job is None:
            raise JobError(f"there is no job {name} in {self._storage.url}")
        if not self._is_own(job.spec):
            owner = job.spec.pipeline
            raise JobError(
                (
                    f"the job {name} is the pipeline {owner}'s"
                    if owner
                    else f"the job {name} is of the pipeline without a name"
                ),
                hint=f"`--pipeline {owner}`" if owner else "leave --pipeline away",
            )
        return job

    def _is_own(self, spec: JobSpec) -> bool:
        return self._pipeline is None or spec.pipeline == self._pipeline

    def find(self, name: str) -> Job | None:
        """Return the job with this id, None if there is none."""
        path = f"jobs/{name}/spec.json"
        try:
            return self._job(parse_spec(name, self._storage.read(path)))
        except FileNotFoundError:
            open_now = {spec.id: spec for spec in self._register.load().open}
            return self._job(open_now[name]) if name in open_now else None
        except ValueError as error:
            raise RelayCorruptError(
                f"{self._storage.url}/{path}: {error}", hint="restore the file from a copy"
            ) from None

    def is_over(self, name: str) -> bool:
        """Return whether nothing more comes of the job with this id; so it is if there is none."""
        job = self.find(name)
        return job is None or job.entry().state in FINAL_STATES

    def names(self) -> list[str]:
        """Return the ids of all jobs, in no order; an id may turn out to have no job."""
        return [
            *dict.fromkeys(
                [*self._storage.names("jobs"), *(spec.id for spec in self._register.load().open)]
            )
        ]

    def list(self) -> list[Job]:
        """Return all entries, oldest first."""
        found = [
            job
            for name in self.names()
            if (job := self.find(name)) is not None and self._is_own(job.spec)
        ]
        return sorted(found, key=lambda job: (job.spec.made_ms, job.id))

    def forget(self, name: str) -> None:
        """Remove what is written down about a job that is over.

        Raises JobError if it isn't, or if there is none.
        """
        job = self.get(name)
        if job.entry().state not in FINAL_STATES:
            raise JobError(
                f"the job {job.spec} is {job.status().state}, and isn't over",
                hint=f"`sluice jobs cancel {name}`",
            )
        self._register.change(lambda jobs: jobs.without(name))
        job.files.remove()

    def _in_the_way(self, other: JobSpec, touches: WriteScope) -> bool:
        """Return whether a job of the list has nothing to be there for.

        Raises JobOverlapError if it is in the way.
        """
        job = self._job(other)
        if job.entry().state in FINAL_STATES:
            return True
        shared = other.touches.shared(touches)
        if shared == ():
            return False
        what = "the whole downstream" if shared is None else abbreviate(shared)
        raise JobOverlapError(
            f"{what} is touched by the job {other}, which is {job.status().state}",
            hint=(
                f"wait until it is over (`sluice jobs show {other.id}`), or `sluice jobs cancel"
                f" {other.id}`"
            ),
        )

    def _former(self) -> OpenJobs:
        """Return the one job that a former version may have left unfinished: a bootstrap."""
        path = "jobs/bootstrap/spec.json"
        try:
            spec = parse_spec("bootstrap", self._storage.read(path))
        except FileNotFoundError:
            return OpenJobs()
        except ValueError as error:
            raise RelayCorruptError(
                f"{self._storage.url}/{path}: {error}", hint="restore the file from a copy"
            ) from None
        return OpenJobs((spec,), {spec.kind: 1})

    def _job(self, spec: JobSpec) -> Job:
        return Job(JobFiles(self._storage, spec, self._register))


class Job:
    """One of them; `ledger` is where it is written down.

    Every method raises RelayCorruptError, OSError.
    """

    def __init__(self, ledger: JobFiles) -> None:
        self.files = ledger

    @property
    def id(self) -> str:
        return self.files.id

    @property
    def spec(self) -> JobSpec:
        """Return the request."""
        return self.files.spec

    def plan(self) -> dict[str, Any] | None:
        """Return the plan, None if none was saved yet."""
        return self.files.plan()

    def plan_of_kind(self, kind: str) -> dict[str, Any]:
        """Return the plan of a job of that kind.

        Raises JobError if it is of another, or has none.
        """
        if self.spec.kind != kind:
            raise JobError(f"the job {self.id} is a {self.spec.kind}, no {kind}")
        plan = self.plan()
        if plan is None:
            raise JobError(
                f"the job {self.id} was asked for by a process that ended before its plan was kept",
                hint=f"`sluice jobs cancel {self.id}`, then ask for it again",
            )
        return plan

    def save_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the plan; the one that is kept, which is another process's if that was first."""
        return self.files.save_plan(plan)

    def entry(self) -> StateEntry:
        """Return the newest entry of its state."""
        return self.files.history.load()

    def status(self) -> JobStatus:
        """Return the job's status, for people.

        Whether its process lives is judged by the machines' clocks where nothing better is known.
        """
        entry = self.entry()
        members = self.files.members(entry.run) if entry.state in ACTIVE_STATES else []
        dead = (
            entry.state in ACTIVE_STATES
            and entry.runner is not None
            and not _seem_alive(entry, members)
        )
        progress = self.files.progress(entry.run)
        if dead or entry.state not in ACTIVE_STATES:
            progress = progress.at_rest(is_done=entry.state == DONE)
        return JobStatus(self.spec, INTERRUPTED if dead else entry.state, entry, progress)

    def order(self, what: str, by: str) -> StateEntry:
        """Order PAUSE, CANCEL, or RESUME, which withdraws a PAUSE, and return the job's new state.

        The running process obeys at its next chunk boundary. If none runs, a CANCEL waits for the
        next one, and nothing else changes. Raises JobError if the order is impossible in the job's
        state.
        """
        goal = {PAUSE: PAUSING, CANCEL: CANCELLING, RESUME: RUNNING}[what]

        def ordered(newest: StateEntry) -> StateEntry:
            if newest.state in FINAL_STATES:
                raise JobError(f"the job {self.id} is {newest.state} already")
            if newest.state == CANCELLING and what != CANCEL:
                raise JobError(f"the job {self.id} is being cancelled, as {newest.by} asked")
            if newest.state == goal or (newest.state not in ACTIVE_STATES and what != CANCEL):
                return newest
            return newest.then(
                goal, by, runner=newest.runner if newest.state in ACTIVE_STATES else None
            )

        return self.files.history.change(ordered)

    def run(self, runner: Runner, *, patience_s: float | None = None) -> JobRun:
        """Run the job, or with others of the same group run it together: a context.

        Waits up to `patience_s`, which is DEAD_AFTER_S if None, for a sign of life of the process
        that ran it last. Raises JobRunsError if there is one, JobError if the job is over.
        """
        entry = self.entry()
        if entry.state in ACTIVE_STATES and not _same_group(entry, runner):
            self._require_no_runner(entry, DEAD_AFTER_S if patience_s is None else patience_s)

        def taken(newest: StateEntry) -> StateEntry:
            if newest.state in FINAL_STATES:
                raise JobError(f"the job {self.id} is {newest.state} already")
            if _same_group(newest, runner):
                return newest
            if newest.run != entry.run:
                raise self._runs(newest)
            state = CANCELLING if newest.state == CANCELLING else RUNNING
            return newest.then(state, str(runner), run=newest.run + 1, runner=runner)

        return JobRun(self.files, self.files.history.change(taken), runner)

    def join(self, runner: Runner) -> JobRun:
        """Run the job together with the process of the same group that began the run: a context.

        Raises LeaseLostError if that run has ended, in whichever way.
        """
        entry = self.entry()
        if not _same_group(entry, runner):
            said = f": {entry.message}" if entry.message else f", by {entry.by}"
            raise LeaseLostError(f"the job {self.id} is {entry.state}{said}")
        return JobRun(self.files, entry, runner)

    def _require_no_runner(self, entry: StateEntry, patience_s: float) -> None:
        """Return once the run's processes have ended, or none sent a heartbeat for `patience_s`."""
        deadline = time.monotonic() + patience_s
        heard = self._heartbeats(entry.run)
        while not _certainly_ended(entry, self.files.members(entry.run)):
            if self._heartbeats(entry.run) != heard:
                raise self._runs(entry)
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_INTERVAL_S)

    def _heartbeats(self, run: int) -> dict[str, int]:
        return {member.runner.token: member.beat for member in self.files.members(run)}

    def _runs(self, entry: StateEntry) -> JobRunsError:
        return JobRunsError(
            f"the job {self.id} is run by {entry.runner}, since {format_ms(entry.made_ms)}",
            hint=(
                f"`sluice jobs show {self.id}` shows how far it is, `sluice jobs pause {self.id}`"
                " has it stop"
            ),
        )


def _same_group(entry: StateEntry, runner: Runner) -> bool:
    """Return whether the runner is of the group that runs the job."""
    return (
        entry.state in ACTIVE_STATES
        and entry.runner is not None
        and runner.is_same_group(entry.runner)
    )


def _certainly_ended(entry: StateEntry, members: list[WorkerProgress]) -> bool:
    """Return whether all its processes have ended, as far as that can be known at once."""
    if entry.runner is None:
        return True
    if not entry.runner.group:
        return entry.runner.has_certainly_ended() or any(
            member.left for member in members if member.runner.token == entry.runner.token
        )
    return False


def _seem_alive(entry: StateEntry, members: list[WorkerProgress]) -> bool:
    if _certainly_ended(entry, members):
        return False
    noted = [member.noted_ms for member in members] or [entry.made_ms]
    silent_ms = min(abs(time.time_ns() // 1_000_000 - ms) for ms in noted)
    if members and all(member.left for member in members):
        return silent_ms < _BETWEEN_MS
    gone = [member.left or member.runner.has_certainly_ended() for member in members]
    return silent_ms < _FRESH_MS and not (gone and all(gone))
