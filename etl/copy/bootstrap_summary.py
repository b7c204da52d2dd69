"""Hold the outcome of a bootstrap's run, and find the plan that its job saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.relay.jobs import DONE, Job, JobError


@dataclass(frozen=True, slots=True)
class BootstrapSummary:
    """The outcome of a run.

    `ts`: the checkpoint. `rows` and `bytes` count what this process copied, `rows_there` all.
    `state`: DONE, PAUSED or CANCELLED; `left`: what a cancelled one left downstream.
    """

    ts: int
    tables: int
    rows: int
    rows_there: int
    bytes: int
    seconds: float
    warnings: tuple[str, ...] = ()
    state: str = DONE
    left: tuple[str, ...] = ()


def saved_plan(job: Job) -> dict[str, Any]:
    """Return a job's plan. Raises JobError if it has none."""
    plan = job.plan()
    if plan is None:
        raise JobError(
            f"the job {job.id} has no plan: the process that began it died before it had one",
            hint=f"give the command again that began it, or `sluice jobs cancel {job.id}`",
        )
    return plan
