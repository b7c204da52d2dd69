"""Report a restore's progress in the terms of jobs."""

from __future__ import annotations

from sluice.relay.jobs import JobCounts, TableProgress

__all__ = ["CHANGES", "table_progress"]

CHANGES = "row changes"
"""Under this name the applied changes stand in a job's progress, in the place of a table's rows."""


def table_progress(size: int) -> dict[str, TableProgress]:
    """Return the progress of applying `size` bytes of the archive's files, at its begin."""
    return {CHANGES: TableProgress(JobCounts(), size)}
