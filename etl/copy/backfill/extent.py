"""Estimate how much a backfill has to do, and which share of it is done.

TiDB has no statistics for a table that was never analysed. The replica's own then serve: it holds
about the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluice.etl.copy.backfill.plan import BackfillPlan, BackfillTablePlan
from sluice.etl.copy.backfill.upstream_catalog import TableSize
from sluice.tidb.folded import folded

__all__ = ["is_extent_known", "planned_work", "with_sizes_of_replica"]

ROW_BYTES = 200
"""A row takes as long as 200 bytes of rows do: 1.5 µs, and 7 ns a byte (performance/jobs.md)."""


def with_sizes_of_replica(plan: BackfillPlan, sizes: Mapping[str, TableSize]) -> BackfillPlan:
    """Fill in sizes that TiDB doesn't know. `sizes`: downstream, by folded full name.

    A table that others share holds theirs, too, and tells nothing.
    """
    shared = Counter(folded(table.target) for table in plan.tables)

    def filled(table: BackfillTablePlan) -> BackfillTablePlan:
        size = sizes.get(folded(table.target))
        is_unknown = not table.rows and not table.only and not table.is_created
        if size is None or not is_unknown or shared[folded(table.target)] > 1:
            return table
        return replace(table, rows=size.rows, bytes=size.bytes)

    return replace(plan, tables=tuple(map(filled, plan.tables)))


def is_extent_known(plans: Sequence[BackfillTablePlan], where: str) -> bool:
    """Return whether the sizes say what there is to copy of every table.

    They don't of ranges, of rows that a condition selects, and of tables without statistics. An
    empty table and one without statistics look alike, so one such table is taken for empty only
    where another's size is known.
    """
    if where or any(plan.low or plan.high or plan.only for plan in plans):
        return False
    return any(plan.rows and plan.bytes for plan in plans) and not any(
        plan.is_created and not plan.rows for plan in plans
    )


def planned_work(
    plan: BackfillTablePlan, *, rows: int | None = None, is_over: bool = False
) -> tuple[int, int]:
    """Return the planned bytes, and the extra work (`JobCounts.extra`) of the rows.

    With `rows`, what so many of the table's rows are of it: what is read has another form than what
    the server measures. None: all of it.
    """
    if rows is None or is_over:
        return plan.bytes, plan.rows * ROW_BYTES
    rows = min(rows, plan.rows)
    return plan.bytes * rows // (plan.rows or 1), rows * ROW_BYTES
