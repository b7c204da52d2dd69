"""The first half of a restore: databases, tables and rows as they were at the base, and the checkpoint there."""

from __future__ import annotations

from etl.copy.copy_run import CopyRun
from etl.copy.load_files import remove_files
from etl.copy.loads import MakeLoads
from etl.restore.progress import table_progress
from relay.jobs import TableProgress
from relay.storage import open_storage

__all__ = ["LoadBase"]

_STILL_RUNNING_S = 60.0


class LoadBase(CopyRun):
    """Loads the base, or finds it loaded."""

    log_bytes: int = 0
    """Of the archive's files, to be applied afterwards: for the progress."""

    def load(self, make: MakeLoads) -> None:
        """Up to the checkpoint, which says that all of it is there. Raises Ordered, and as CopyRun."""
        self._prepare()
        self._copy(make, 0, 1)
        self._complete()

    def _seize(self) -> None:
        """Who ran the job before this process has lost it, so its sessions are ended."""
        self._lock.seize(self._session, _STILL_RUNNING_S)
        remove_files(open_storage(self._settings.relay.url))

    def _base(self) -> dict[str, TableProgress]:
        return super()._base() | table_progress(self.log_bytes)
