"""The archive: landed windows become volumes, for restoring and as typed columns; volumes are compacted and checked.

What only the client needs is imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.archive.errors import ArchiveGapError, NotYetLandedError, OtherClusterError
from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.archive.archiver import archive_through
    from etl.archive.checking import CheckSummary, check
    from etl.archive.compaction import CompactSummary, compact
    from etl.archive.report import ArchivedVolume, ArchiveSummary

__all__ = [
    "ArchiveGapError",
    "ArchiveSummary",
    "ArchivedVolume",
    "CheckSummary",
    "CompactSummary",
    "NotYetLandedError",
    "OtherClusterError",
    "archive_through",
    "check",
    "compact",
]

__getattr__ = on_first_use(
    __name__,
    {
        "ArchiveSummary": "etl.archive.report",
        "ArchivedVolume": "etl.archive.report",
        "CheckSummary": "etl.archive.checking",
        "CompactSummary": "etl.archive.compaction",
        "archive_through": "etl.archive.archiver",
        "check": "etl.archive.checking",
        "compact": "etl.archive.compaction",
    },
)
