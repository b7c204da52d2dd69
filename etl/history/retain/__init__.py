"""What may be removed of the relay log and of the archive, and from when to when one can restore."""

from sluice.etl.history.retain.errors import NotArchivedError, RetainError
from sluice.etl.history.retain.ranges import TableRange
from sluice.etl.history.retain.restorable import tables_restorable_at
from sluice.etl.history.retain.run import RetainSummary, retain
from sluice.etl.history.retain.status import ArchiveStatus, archive_status

__all__ = [
    "ArchiveStatus",
    "NotArchivedError",
    "RetainError",
    "RetainSummary",
    "TableRange",
    "archive_status",
    "retain",
    "tables_restorable_at",
]
