"""Drills: restoring is tried before it is needed."""

from etl.drill.errors import DrillError, DrillFailedError
from etl.drill.job import KIND, DrillSummary, Wish, ask_for, cancel_drill, is_due, run_drill

__all__ = [
    "KIND",
    "DrillError",
    "DrillFailedError",
    "DrillSummary",
    "Wish",
    "ask_for",
    "cancel_drill",
    "is_due",
    "run_drill",
]
