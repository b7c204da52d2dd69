"""Load a snapshot, the first half of a restore: databases, tables, rows, and the checkpoint."""

from __future__ import annotations

from sluice.etl.copy.copy_run import CopyJob
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.copy.staged_loads import remove_files
from sluice.etl.restore.progress import table_progress
from sluice.relay.jobs import TableProgress
from sluice.relay.storage import open_storage

__all__ = ["LoadSnapshot"]

_LOCK_TIMEOUT_S = 60.0


class LoadSnapshot(CopyJob):
    """Loads the snapshot, or finds it loaded."""

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
