"""Decide what may be removed of relay log and archive, and report the restorable range.

What removes loads on first use: `sluice status` only reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.history.errors import NotArchivedError, RetainError
from sluice.etl.history.retain.ranges import TableRange
from sluice.etl.history.retain.status import (
    ArchiveStatus,
    RestorableTables,
    archive_status,
    restorable_tables,
    tables_restorable_at,
)
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.history.retain.run import RetainSummary, retain

__all__ = [
    "ArchiveStatus",
    "NotArchivedError",
    "RestorableTables",
    "RetainError",
    "RetainSummary",
    "TableRange",
    "archive_status",
    "restorable_tables",
    "retain",
    "tables_restorable_at",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "RetainSummary": "sluice.etl.history.retain.run",
        "retain": "sluice.etl.history.retain.run",
    },
)
