"""What may be removed of the relay log and of the archive, and from when to when one can restore."""

from etl.retain.errors import NotArchivedError, RetainError
from etl.retain.ranges import TableRange
from etl.retain.run import RetainSummary, retain
from etl.retain.status import ArchiveStatus, archive_status

__all__ = [
    "ArchiveStatus",
    "NotArchivedError",
    "RetainError",
    "RetainSummary",
    "TableRange",
    "archive_status",
    "retain",
]
