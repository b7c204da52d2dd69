"""Order, run and show one job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.relay.jobs.errors import JobError, JobRunsError, LeaseLostError
from sluice.relay.jobs.job_files import JobFiles
from sluice.relay.jobs.lease import CANCEL, PAUSE, JobRun
from sluice.relay.jobs.progress import JobProgress, WorkerProgress
from sluice.relay.jobs.runner import Runner
from sluice.relay.jobs.spec import JobSpec, format_ms
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

    def run(self, runner: Runner, *, timeout_s: float | None = None) -> JobRun:
        """Run the job, or with others of the same group run it together: a context.

        Waits up to `timeout_s`, which is DEAD_AFTER_S if None, for a sign of life of the process
        that ran it last. Raises JobRunsError if there is one, JobError if the job is over.
        """
        entry = self.entry()
        if entry.state in ACTIVE_STATES and not _same_group(entry, runner):
            self._require_no_runner(entry, DEAD_AFTER_S if timeout_s is None else timeout_s)

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
            reason = f": {entry.message}" if entry.message else f", by {entry.by}"
            raise LeaseLostError(f"the job {self.id} is {entry.state}{reason}")
        return JobRun(self.files, entry, runner)

    def _require_no_runner(self, entry: StateEntry, timeout_s: float) -> None:
        """Return once the run's processes have ended, or none sent a heartbeat for `timeout_s`."""
        deadline = time.monotonic() + timeout_s
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
