"""The first half of a restore: databases, tables and rows as they were at the snapshot, and the
checkpoint there.
"""

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
    """Of the archive's files, to be applied afterwards: for the progress."""

    def load(self, make: MakeLoads) -> None:
        """Up to the checkpoint, which says that all of it is there.

        Raises StopRequested, and as CopyRun.
        """
        self._prepare()
        self._copy(make, 0, 1)
        self._complete()

    def _acquire_lock(self) -> None:
        """Who ran the job before this process has lost it, so its sessions are ended."""
        self._lock.acquire(self._session, _LOCK_TIMEOUT_S)
        remove_files(open_storage(self._settings.relay.url))

    def _open_snapshot(self) -> dict[str, TableProgress]:
        return super()._open_snapshot() | table_progress(self.log_bytes)
