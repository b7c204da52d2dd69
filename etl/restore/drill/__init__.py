"""Drills: restoring is tried before it is needed."""

from sluice.etl.restore.drill.job import (
    KIND,
    DrillSummary,
    RestoreTestRequest,
    cancel_drill,
    create_or_resume,
    is_due,
    run_drill,
)
from sluice.etl.restore.errors import DrillError, DrillFailedError

__all__ = [
    "KIND",
    "DrillError",
    "DrillFailedError",
    "DrillSummary",
    "RestoreTestRequest",
    "cancel_drill",
    "create_or_resume",
    "is_due",
    "run_drill",
]
