"""Plan all deletes, then all loads: the net effects of a change set in one transaction.

So a swap of unique key values needs no order of its own: both rows go first, then both come again.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.etl.changes.steps import Step
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.history_versions import HistoryVersions, history_versions_of
from sluice.etl.changes.write_plans.same_shape_tables import small_net_effects
from sluice.etl.changes.write_plans.small_batches import SmallNetEffect
from sluice.etl.changes.write_plans.table_changes import (
    TableChanges,
    changes_of,
    check_merged_tables,
)


def plan_steps(segment: ChangeSet, timings: StageTimings, workers: int = 1) -> Iterator[Step]:
    """Delete steps of every table, then load steps of every table; one session writes them all.

    In safe mode, checks of tables without a key before.
    """
    reduced: list[SmallNetEffect | TableChanges | HistoryVersions] = []
    for few, (table, places) in zip(
        small_net_effects(segment, timings), segment.tables, strict=True
    ):
        if few is not None:
            reduced.append(few)
        elif not table.history:
            reduced.append(changes_of(segment, table, places, timings))
        elif len(places):  # what is to be taken back of a history table was never written
            reduced.append(history_versions_of(segment, table, places, timings))
    others = [table_changes for table_changes in reduced if isinstance(table_changes, TableChanges)]
    check_merged_tables(others)
    for each in reduced:
        if not isinstance(each, SmallNetEffect):
            yield from each.as_bytes(segment.after)
    for table_changes in others:
        yield from table_changes.checks()
    for each in reduced:
        yield from each.deletes()
    for each in reduced:
        yield from each.loads()
