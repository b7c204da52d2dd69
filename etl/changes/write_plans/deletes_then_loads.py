"""Plan all deletes, then all loads: the net effects of a change set in one transaction.

So a swap of unique key values needs no order of its own: both rows go first, then both come again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sluice.etl.changes.steps import Step
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.history_versions import HistoryVersions, history_versions_of
from sluice.etl.changes.write_plans.same_shape_tables import (
    MAX_BATCHED_CHANGES,
    small_net_effects,
)
from sluice.etl.changes.write_plans.small_batches import SmallNetEffect
from sluice.etl.changes.write_plans.table_changes import (
    TableChanges,
    changes_of,
    check_merged_tables,
)

_GROUP_CHANGES = 2 * MAX_BATCHED_CHANGES


@dataclass(frozen=True, slots=True)
class PieceBounds:
    """A piece of a change set, which is committed by itself."""

    end: int
    """The end of its tables among those of the change set."""
    after: int
    """As `ChangeSet.after` and `through`, of the piece."""
    through: int


def plan_steps(segment: ChangeSet, timings: StageTimings, workers: int = 1) -> Iterator[Step]:
    """Delete steps of every table, then load steps of every table; one session writes them all.

    In safe mode, checks of tables without a key before.
    """
    yield from _planned(segment, small_net_effects(segment, timings), timings)


def plan_pieces(
    whole: ChangeSet, pieces: Sequence[PieceBounds], timings: StageTimings
) -> Iterator[Iterator[Step]]:
    """Yield the steps of each piece of a change set, as `plan_steps` has them for it alone.

    Tables are reduced together across pieces: a piece has few changes, and calls cost the most.
    """
    begin = 0
    for some in _grouped(whole, pieces):
        first, end = begin, some[-1].end
        group = replace(whole, tables=whole.tables[first:end])
        effects = small_net_effects(group, timings)
        for piece in some:
            segment = replace(
                whole,
                tables=whole.tables[begin : piece.end],
                after=piece.after,
                through=piece.through,
            )
            yield _planned(segment, effects[begin - first : piece.end - first], timings)
            begin = piece.end


def _grouped(whole: ChangeSet, pieces: Sequence[PieceBounds]) -> Iterator[list[PieceBounds]]:
    """Yield pieces that follow one another, as many as are well reduced together.

    More of them would only be more objects that wait.
    """
    group: list[PieceBounds] = []
    begin = 0
    for piece in pieces:
        group.append(piece)
        if sum(len(places) for _, places in whole.tables[begin : piece.end]) >= _GROUP_CHANGES:
            yield group
            group, begin = [], piece.end
    if group:
        yield group


def _planned(
    segment: ChangeSet, effects: Sequence[SmallNetEffect | None], timings: StageTimings
) -> Iterator[Step]:
    reduced: list[SmallNetEffect | TableChanges | HistoryVersions] = []
    for few, (table, places) in zip(effects, segment.tables, strict=True):
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
