"""The archive: landed windows become volumes, for restoring and as typed columns; volumes are compacted and checked.

What only the client needs is imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from etl.archive.errors import ArchiveGapError, NotYetLandedError, OtherClusterError

if TYPE_CHECKING:
    from etl.archive.archiver import archive_through
    from etl.archive.checking import CheckSummary, check
    from etl.archive.compaction import CompactSummary, compact
    from etl.archive.report import ArchivedVolume, ArchiveSummary

_ON_FIRST_USE = {
    "ArchiveSummary": "etl.archive.report",
    "ArchivedVolume": "etl.archive.report",
    "CheckSummary": "etl.archive.checking",
    "CompactSummary": "etl.archive.compaction",
    "archive_through": "etl.archive.archiver",
    "check": "etl.archive.checking",
    "compact": "etl.archive.compaction",
}

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


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'etl.archive' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ON_FIRST_USE[name]), name)
    globals()[name] = value
    return value
