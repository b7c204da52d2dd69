"""The archive: landed windows become segments, for restoring and as typed columns.

Segments are compacted and checked.

What only the client needs is imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.history.errors import ArchiveGapError, NotYetLandedError, OtherClusterError
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.history.archive.archiver import archive_through
    from sluice.etl.history.archive.checking import CheckSummary, check
    from sluice.etl.history.archive.compaction import CompactionSummary, compact
    from sluice.etl.history.archive.report import ArchivedSegment, ArchiveSummary

__all__ = [
    "ArchiveGapError",
    "ArchiveSummary",
    "ArchivedSegment",
    "CheckSummary",
    "CompactionSummary",
    "NotYetLandedError",
    "OtherClusterError",
    "archive_through",
    "check",
    "compact",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "ArchiveSummary": "sluice.etl.history.archive.report",
        "ArchivedSegment": "sluice.etl.history.archive.report",
        "CheckSummary": "sluice.etl.history.archive.checking",
        "CompactionSummary": "sluice.etl.history.archive.compaction",
        "archive_through": "sluice.etl.history.archive.archiver",
        "check": "sluice.etl.history.archive.checking",
        "compact": "sluice.etl.history.archive.compaction",
    },
)
