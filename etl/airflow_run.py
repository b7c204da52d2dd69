"""What the id of an Airflow run tells."""

from __future__ import annotations

_SCHEDULED = "scheduled__"
"""So Airflow names the runs of a schedule; those that somebody triggers, and backfills, are named otherwise."""


def is_by_the_clock(run_id: str) -> bool:
    """Whether nobody asked for the run: its DAG's schedule began it."""
    return run_id.startswith(_SCHEDULED)
