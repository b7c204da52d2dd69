"""The second half of a restore: what was committed after the base, by the code that replicates."""

from __future__ import annotations

import threading

from etl.apply import ApplySummary, BatchReport, PastRange, Prepare, apply_past
from etl.downstream import Checkpoint
from etl.restore.errors import RestoreError
from etl.restore.progress import CHANGES
from etl.settings import Settings
from etl.sinks import TakesOver, open_sink
from relay import WindowLog
from relay.jobs import Done, Job, Run, stopping_on_orders

__all__ = ["apply_log"]


class _JobKeeper:
    """Admits the checkpoint row that loading the base has left, or this job itself; see `etl.sinks.sink.Keeper`."""

    def __init__(self, job: Job) -> None:
        self.pipeline = f"job {job.id}/{job.spec.token}"
        self._id = job.id

    def admit(self, found: Checkpoint | None) -> None:
        """Raises RestoreError if there is none: who wakes up after the job was given up begins nothing anew."""
        if found is None:
            raise RestoreError(f"the checkpoint of the job {self._id} is gone: the job is over, or was given up")


def apply_log(  # noqa: PLR0913 what it works with, by name
    log: WindowLog, past: PastRange, *, own: Settings, cluster_id: int, job: Job, run: Run, prepare: Prepare
) -> ApplySummary:
    """Apply the range, from where the job's checkpoint is, until its end or an order to the run. Raises as
    `etl.apply.apply_past`, LeaseLostError.
    """
    sink = open_sink(own, cluster_id)
    assert isinstance(sink, TakesOver)
    sink.guard(_JobKeeper(job))
    stop = threading.Event()

    def wrote(report: BatchReport, size: int) -> None:
        run.did(CHANGES, Done(report.changes, size, 0))
        run.doing("applying row changes")
        run.look()
        run.check()
        if run.order is not None:
            stop.set()

    with stopping_on_orders(run, stop):
        return apply_past(log, past, sink, prepare=prepare, limits=own.apply, stop=stop, on_batch=wrote)
