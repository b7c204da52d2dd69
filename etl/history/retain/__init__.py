"""Decide what may be removed of relay log and archive, and report the restorable range."""

from sluice.etl.history.errors import NotArchivedError, RetainError
from sluice.etl.history.retain.ranges import TableRange
from sluice.etl.history.retain.run import RetainSummary, retain
from sluice.etl.history.retain.status import ArchiveStatus, archive_status, tables_restorable_at

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
