"""Apply what was committed after the snapshot, the second half of a restore.

The code is that of replication.
"""

from __future__ import annotations

import threading

from sluice.etl.apply import ApplySummary, BatchReport, Prepare, ReplayRange, apply_range
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.sinks import DrainerTakeover, open_sink
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.progress import CHANGES
from sluice.etl.settings import Settings
from sluice.relay import WindowLog
from sluice.relay.jobs import Job, JobCounts, JobRun, stop_on_orders

__all__ = ["replay_log"]


class _RestoreCheckpointGuard:
    """Admits the checkpoint row that loading the snapshot has left, or this job itself.

    See `sluice.etl.downstream.sinks.sink.CheckpointGuard`.
    """

    def __init__(self, job: Job) -> None:
        self.pipeline = f"job {job.id}/{job.spec.token}"
        self._id = job.id

    def check_checkpoint(self, found: Checkpoint | None) -> None:
        """Raise RestoreError if there is no checkpoint.

        So a process that wakes up after the job was cancelled begins nothing again.
        """
        if found is None:
            raise RestoreError(
                f"the checkpoint of the job {self._id} is gone: the job is over, or was given up"
            )


def replay_log(  # noqa: PLR0913 what it works with, by name
    log: WindowLog,
    past: ReplayRange,
    *,
    own: Settings,
    cluster_id: int,
    job: Job,
    run: JobRun,
    prepare: Prepare,
) -> ApplySummary:
    """Apply the range, from where the job's checkpoint is, until its end or an order to the run.

    Raises as `sluice.etl.apply.apply_range`, LeaseLostError.
    """
    sink = open_sink(own, cluster_id)
    assert isinstance(sink, DrainerTakeover)
    sink.set_guard(_RestoreCheckpointGuard(job))
    stop = threading.Event()

    def wrote(report: BatchReport, size: int) -> None:
        run.did(CHANGES, JobCounts(report.changes, size, 0))
        run.doing("applying row changes")
        run.look()
        run.check()
        if run.order is not None:
            stop.set()

    with stop_on_orders(run, stop):
        return apply_range(
            log, past, sink, prepare=prepare, limits=own.apply, stop=stop, on_batch=wrote
        )
