"""Make snapshots: all tables as of one moment, in the archive.

What only the client needs is imported on first use: Spark's workers import this package, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.history.errors import SnapshotError
from sluice.etl.lazy_exports import lazy_getattr

if TYPE_CHECKING:
    from sluice.etl.history.snapshots.checking import check_snapshot, forget_snapshot
    from sluice.etl.history.snapshots.plan import SnapshotPlan
    from sluice.etl.history.snapshots.request import AUTO, SnapshotJobSummary, SnapshotRequest
    from sluice.etl.history.snapshots.run import (
        cancel_snapshot,
        create_snapshot,
        plan_snapshot,
        run_snapshot,
    )

__all__ = [
    "AUTO",
    "SnapshotError",
    "SnapshotJobSummary",
    "SnapshotPlan",
    "SnapshotRequest",
    "cancel_snapshot",
    "check_snapshot",
    "create_snapshot",
    "forget_snapshot",
    "plan_snapshot",
    "run_snapshot",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "AUTO": "sluice.etl.history.snapshots.request",
        "SnapshotPlan": "sluice.etl.history.snapshots.plan",
        "SnapshotJobSummary": "sluice.etl.history.snapshots.request",
        "SnapshotRequest": "sluice.etl.history.snapshots.request",
        "cancel_snapshot": "sluice.etl.history.snapshots.run",
        "check_snapshot": "sluice.etl.history.snapshots.checking",
        "create_snapshot": "sluice.etl.history.snapshots.run",
        "forget_snapshot": "sluice.etl.history.snapshots.checking",
        "plan_snapshot": "sluice.etl.history.snapshots.run",
        "run_snapshot": "sluice.etl.history.snapshots.run",
    },
)
