"""The archive: landed windows become volumes, for restoring and as typed columns; volumes are compacted and checked."""

from etl.archive.archiver import archive_through
from etl.archive.checking import CheckSummary, check
from etl.archive.compaction import CompactSummary, compact
from etl.archive.errors import ArchiveGapError, NotYetLandedError, OtherClusterError
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
