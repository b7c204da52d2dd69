"""Run the two stages of a restore: load the snapshot, then apply what was committed after it.

Applying uses replication's code.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

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

__all__ = ["CHANGES", "LaterWork", "LoadSnapshot", "replay_log"]

_LOCK_TIMEOUT_S = 60.0

CHANGES = "row changes"
"""Name of the applied changes in a job's progress, in the place of a table's rows."""


@dataclass(frozen=True, slots=True)
class LaterWork:
    """What a restore does after loading.

    `log_bytes`: of the archive's files whose changes are applied, which takes `applying` bytes of
    `JobCounts.work`; `verifying_s`: verification, in s.
    """

    log_bytes: int = 0
    applying: int = 0
    verifying_s: float = 0.0

    def progress(self) -> dict[str, TableProgress]:
        """Return the progress at the begin."""
        extra, later_s = self.applying - self.log_bytes, self.verifying_s
        found = TableProgress(bytes_in_all=self.log_bytes, extra_in_all=extra, later_s=later_s)
        return {CHANGES: found}

    def applied(self, changes: int, cost: RestoreCost) -> JobCounts:
        """Return what applying some of the plan's changes counts as.

        Each counts as its share of the planned bytes: the files hold the changes of other tables,
        too.
        """
        of = max(cost.changes, 1)
        size = self.log_bytes * changes // of
        return JobCounts(changes, size, 0, extra=self.applying * changes // of - size)


class LoadSnapshot(CopyJob):
    """Load the snapshot, or find it loaded."""

    later: LaterWork = LaterWork()
    """What comes after the snapshot, for the progress."""

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
        return super()._open_snapshot() | self.later.progress()


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
    later: LaterWork,
) -> ApplySummary:
    """Apply the range, from where the job's checkpoint is, until its end or an order to the run.

    `cost` and `later`: the plan's, for the progress.

    Raises as `sluice.etl.apply.apply_range`, LeaseLostError.
    """
    sink = open_sink(own, cluster_id)
    assert isinstance(sink, DrainerTakeover)
    sink.set_guard(_RestoreCheckpointGuard(job))
    stop = threading.Event()

    def wrote(report: BatchReport, _: int) -> None:
        run.did(CHANGES, later.applied(report.changes, cost))
        run.doing("applying row changes")
        run.look()
        run.check()
        if run.order is not None:
            stop.set()

    run.expect(later.applying)
    with stop_on_orders(run, stop):
        return apply_range(
            log, past, sink, prepare=prepare, limits=own.apply, stop=stop, on_batch=wrote
        )
