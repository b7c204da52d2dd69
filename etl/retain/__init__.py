"""What may be removed of the relay log and of the archive, and from when to when one can restore."""

from etl.retain.errors import NotArchivedError, RetainError
from etl.retain.had import had_at
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
    "had_at",
    "retain",
]
