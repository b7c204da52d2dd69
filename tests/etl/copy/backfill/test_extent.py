"""How much there is to copy, from the sizes that either side knows."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.etl.copy.backfill.extent import (
    ROW_BYTES,
    is_extent_known,
    planned_work,
    with_sizes_of_replica,
)
from sluice.etl.copy.backfill.plan import BackfillPlan, BackfillTablePlan
from sluice.etl.copy.backfill.progress_state import BackfillState, BackfillTableState
from sluice.etl.copy.backfill.upstream_catalog import TableSize
from sluice.relay.jobs import JobProgress


def table(name: str = "s.t", target: str = "", **more: Any) -> BackfillTablePlan:
    return BackfillTablePlan(7, name, target or name, ("id",), **more)


def sizes(*tables: BackfillTablePlan, **held: TableSize) -> list[tuple[int, int]]:
    plan = with_sizes_of_replica(
        BackfillPlan("replace", tables), {f"s.{name}": size for name, size in held.items()}
    )
    return [(one.rows, one.bytes) for one in plan.tables]


def test_a_table_without_statistics_upstream_has_the_replicas_size() -> None:
    held = {"t": TableSize(900, 81_000), "u": TableSize(5, 500)}
    assert sizes(table(), table("s.u", rows=7, bytes=70), **held) == [(900, 81_000), (7, 70)]


@pytest.mark.parametrize(
    "tables",
    [
        (table(is_created=True),),
        (table(only=("id = 5",)),),
        (table(target="s.all"), table("s.u", target="s.all")),
    ],
)
def test_what_the_replica_holds_of_others_or_not_yet_is_no_size(
    tables: tuple[BackfillTablePlan, ...],
) -> None:
    held = {"t": TableSize(900, 9), "all": TableSize(900, 9)}
    assert sizes(*tables, **held) == [(0, 0)] * len(tables)


def test_ranges_conditions_and_new_tables_without_statistics_have_no_known_extent() -> None:
    known = table(rows=10, bytes=100)
    assert is_extent_known([known, table("s.empty")], "")
    assert not is_extent_known([known], "v > 3")
    assert not is_extent_known([known, table("s.new", is_created=True)], "")
    assert not is_extent_known([table(rows=10, bytes=100, low=["5"])], "")
    assert not is_extent_known([table()], "")


def test_rows_count_as_their_share_of_the_planned_bytes_and_a_table_that_is_over_as_all() -> None:
    plan = table(rows=1_000, bytes=50_000)
    assert planned_work(plan, rows=500) == (25_000, 500 * ROW_BYTES)
    assert planned_work(plan, rows=1_400) == (50_000, 1_000 * ROW_BYTES)
    assert planned_work(plan, rows=700, is_over=True) == planned_work(plan)


def test_a_resumed_backfill_begins_where_its_rows_ended() -> None:
    plans = [table(rows=1_000, bytes=50_000), table("s.u", rows=1_000, bytes=50_000)]
    states = [BackfillTableState(bytes=400_000, is_over=True), BackfillTableState(bytes=90_000)]
    states[0].counts["rows"], states[1].counts["rows"] = 800, 500
    found = BackfillState(states).progress(plans, is_known=True)
    assert JobProgress(found).percent == 75
    assert JobProgress(BackfillState(states).progress(plans, is_known=False)).percent is None
