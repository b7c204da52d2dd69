"""Net effects, a table at a time: all deletes, then all loads. For a downstream that takes a segment in one transaction."""

from __future__ import annotations

from collections.abc import Iterator

from etl._steps import Step
from etl._table_changes import TableChanges
from etl.shapes.segment import Segment, Timings


def steps(segment: Segment, timings: Timings, workers: int = 1) -> Iterator[Step]:
    """Delete steps of every table, then load steps of every table; one session writes them all. In
    safe mode, checks of tables without a key before."""
    reduced = [
        TableChanges(table, segment.column("kind", places), segment.rows_of(places), segment.column("commit_ts", places), timings, segment.safe)
        for table, places in segment.tables
    ]
    for table_changes in reduced:
        yield from table_changes.checks()
    for table_changes in reduced:
        yield from table_changes.deletes()
    for table_changes in reduced:
        yield from table_changes.loads()
