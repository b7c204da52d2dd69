"""Net effects, a table at a time: all deletes, then all loads. For a downstream that takes a segment in one
transaction.
"""

from __future__ import annotations

from collections.abc import Iterator

from etl.shapes.few_changes import FewChanges
from etl.shapes.segment import Segment, Timings
from etl.shapes.table_changes import changes_of, check_merged
from etl.steps import Step


def steps(segment: Segment, timings: Timings, workers: int = 1) -> Iterator[Step]:
    """Delete steps of every table, then load steps of every table; one session writes them all. In
    safe mode, checks of tables without a key before."""
    reduced = [
        FewChanges.of(segment, table, places, timings) or changes_of(segment, table, places, timings)
        for table, places in segment.tables
    ]
    check_merged(reduced)
    for table_changes in reduced:
        yield from table_changes.as_bytes(segment.after)
    for table_changes in reduced:
        yield from table_changes.checks()
    for table_changes in reduced:
        yield from table_changes.deletes()
    for table_changes in reduced:
        yield from table_changes.loads()
