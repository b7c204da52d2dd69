"""Run the two stages of a restore: load the snapshot, then apply what was committed after it.

Applying uses replication's code.
"""

from __future__ import annotations

import threading

from sluice.etl.apply import ApplySummary, BatchReport, Prepare, ReplayRange, apply_range
from sluice.etl.copy.copy_run import CopyJob
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.copy.staged_loads import remove_files
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.sinks import DrainerTakeover, open_sink
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.plan import RestoreCost
from sluice.etl.settings import Settings
from sluice.relay import WindowLog
from sluice.relay.jobs import Job, JobCounts, JobRun, TableProgress, stop_on_orders
from sluice.relay.storage import open_storage

__all__ = ["CHANGES", "LoadSnapshot", "replay_log", "table_progress"]

_LOCK_TIMEOUT_S = 60.0

CHANGES = "row changes"
"""Name of the applied changes in a job's progress, in the place of a table's rows."""


class LoadSnapshot(CopyJob):
    """Load the snapshot, or find it loaded."""

    log_bytes: int = 0
    """Bytes of the archive's files to be applied afterwards, for the progress."""

    def load(self, make: MakeLoads) -> None:
        """Load up to the checkpoint, which marks the snapshot as complete.

        Raises StopRequested, and as CopyRun.
        """
        self._prepare()
        self._copy(make, 0, 1)
        self._complete()

    def _acquire_lock(self) -> None:
        """Take the lock: an earlier process of the job loses it, and its sessions end."""
        self._lock.acquire(self._session, _LOCK_TIMEOUT_S)
        remove_files(open_storage(self._settings.relay.url))

    def _open_snapshot(self) -> dict[str, TableProgress]:
        return super()._open_snapshot() | table_progress(self.log_bytes)


def table_progress(size: int) -> dict[str, TableProgress]:
    """Return the progress of applying `size` bytes of the archive's files, at its begin."""
    return {CHANGES: TableProgress(JobCounts(), size)}


class _RestoreCheckpointGuard:
    """Admit the checkpoint row that loading the snapshot has left, or this job itself.

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
    cost: RestoreCost,
) -> ApplySummary:
    """Apply the range, from where the job's checkpoint is, until its end or an order to the run.

    `cost`: the plan's, for the progress: each change counts as its share of the planned bytes, as
    the files hold the changes of other tables, too.

    Raises as `sluice.etl.apply.apply_range`, LeaseLostError.
    """
    sink = open_sink(own, cluster_id)
    assert isinstance(sink, DrainerTakeover)
    sink.set_guard(_RestoreCheckpointGuard(job))
    stop = threading.Event()

    def wrote(report: BatchReport, _: int) -> None:
        share = cost.log_bytes * report.changes // max(cost.changes, 1)
        run.did(CHANGES, JobCounts(report.changes, share, 0))
        run.doing("applying row changes")
        run.look()
        run.check()
        if run.order is not None:
            stop.set()

    with stop_on_orders(run, stop):
        return apply_range(
            log, past, sink, prepare=prepare, limits=own.apply, stop=stop, on_batch=wrote
        )
