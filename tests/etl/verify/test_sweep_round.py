"""The round through the whole: table after table, at the pace that makes it last some days, from
where it was left.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict

from sluice.etl.copy.backfill.throttle import ReadBudget
from sluice.etl.copy.backfill.upstream_catalog import TableSize
from sluice.etl.verify.continuous_state import (
    ContinuousState,
    ContinuousStateFile,
    PendingMismatch,
    ScanState,
)
from sluice.etl.verify.full_scan import FullScan, Low, ScanRange
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Table
from tests.etl.story import table

DAY_MS = 86_400_000
TABLES = [
    table(n, name, "id bigint", "v int", primary="id") for n, name in ((1, "a"), (2, "b"), (3, "c"))
]
KEYLESS, LARGE = table(4, "keyless", "v int"), table(5, "large", "v int")


class Rows:
    """Tables with keys 0, 1, 2 … ."""

    def __init__(self, **rows: int) -> None:
        self.rows = rows

    def key_behind(
        self, table: Table, key: object, within: tuple[Low, Low], rows: int
    ) -> list[str] | None:
        begin = int(within[0][0]) if within[0] else 0
        end = min(self.rows[table.name], int(within[1][0]) if within[1] else self.rows[table.name])
        return [str(begin + rows)] if begin + rows < end else None

    def sizes(self) -> Mapping[str, TableSize]:
        size = {"large": 1 << 40}
        return {
            f"d.{name}": TableSize(rows, size.get(name, 100)) for name, rows in self.rows.items()
        }


def gone_through(made: FullScan, tables: list[Table], rows: Rows) -> list[ScanRange]:
    """All stretches until the round is over, each as large as it is."""
    found = []
    while (stretch := made.next(tables, rows)) is not None:
        low = int(made.sweep.low[0]) if made.sweep.low else 0
        end = int(stretch.behind[0]) if stretch.behind else rows.rows[stretch.table.name]
        made.did(stretch, end - low)
        found.append(stretch)
    return found


def test_every_row_of_every_table_is_in_one_stretch_and_a_large_table_without_a_key_in_none() -> (
    None
):
    rows = Rows(a=4500, b=1, c=2000, keyless=7, large=10)
    made = FullScan(ScanState(), 7, rows)
    assert made.is_due(5)
    found = [
        (s.table.name, s.condition) for s in gone_through(made, [*TABLES, KEYLESS, LARGE], rows)
    ]
    assert found == [
        ("a", "`id` < 2000"),
        ("a", "`id` >= 2000 AND `id` < 4000"),
        ("a", "`id` >= 4000"),
        ("b", ""),
        ("c", ""),
        ("keyless", ""),
    ]
    assert made.sweep.is_over


def test_merged_tables_are_gone_through_once_in_stretches_that_are_large_in_none_of_them() -> None:
    rows = Rows(a=100, b=4500, c=1)
    made = FullScan(ScanState(), 7, rows)
    made.merged = {"d.a": TABLES[:2]}
    assert made.is_due(5) and made.sweep.total == 4600 + 2000
    found = [(s.table.name, s.condition) for s in gone_through(made, [TABLES[0], TABLES[2]], rows)]
    assert found == [
        ("a", "`id` < 2000"),
        ("a", "`id` >= 2000 AND `id` < 4000"),
        ("a", "`id` >= 4000"),
        ("c", ""),
    ]
    assert made.bytes_of(TABLES[0]) == 200


def test_the_round_lasts_as_long_as_the_settings_say_and_the_next_begins_then() -> None:
    rows = Rows(a=100_000)
    made = FullScan(ScanState(), 10, rows)
    days = 0.0
    at = []
    while not made.sweep.is_over:
        now = int(1 + days * DAY_MS)
        if made.is_due(now) and (stretch := made.next(TABLES[:1], rows)) is not None:
            made.did(stretch, 2000)
            at.append(days)
        days += 0.05
    assert len(at) == 50 and 9.5 < at[-1] <= 10.0
    assert all(later - earlier < 0.3 for earlier, later in itertools.pairwise(at))
    assert not made.is_due(int(9.9 * DAY_MS))
    assert made.is_due(1 + 10 * DAY_MS) and not made.sweep.is_over


def test_a_round_that_cannot_keep_up_is_told_of() -> None:
    made = FullScan(ScanState(), 1, Rows(a=100_000))
    assert made.is_due(1) and not made.is_late(DAY_MS)
    assert made.is_late(DAY_MS + 2)


def test_another_process_goes_on_where_the_one_before_was_and_tables_may_come_and_go() -> None:
    rows = Rows(a=100, b=5000, c=100)
    made = FullScan(ScanState(), 1, rows)
    assert made.is_due(1)
    for _ in range(2):
        stretch = made.next(TABLES, rows)
        assert stretch is not None
        made.did(stretch, 100)
    again = FullScan(ScanState(**asdict(made.sweep)), 1, rows)
    going_on = again.next(TABLES, rows)
    assert going_on is not None and going_on.condition == "`id` >= 2000 AND `id` < 4000"
    without = again.next([TABLES[0], TABLES[2]], rows)
    assert without is not None and without.table.name == "c"


def test_more_rows_than_were_thought_are_compared_all_and_hurry_nobody() -> None:
    rows = Rows(a=2000, b=2000)
    made = FullScan(ScanState(), 1, rows)
    assert made.is_due(0) or made.is_due(1)
    rows.rows["a"] = 50_000
    first = made.next(TABLES[:2], rows)
    assert first is not None
    made.did(first, 2000)
    for _ in range(20):
        stretch = made.next(TABLES[:2], rows)
        assert stretch is not None
        made.did(stretch, 2000)
    assert made.sweep.done < made.sweep.total


def test_what_is_known_is_kept_and_a_file_that_cannot_be_read_is_a_beginning(
    tmp_path: object,
) -> None:
    storage = open_storage(f"file://{tmp_path}")
    state = ContinuousState(
        7,
        ScanState(1, "d.a", ["5"]),
        [PendingMismatch("d.a", "`id` IN (1)", 3, confirmed=True, rows=2)],
    )
    ContinuousStateFile(storage).keep(state)
    assert ContinuousStateFile(storage).load() == state
    assert state.open_rows("d.a") == 2 and state.open_rows("d.b") == 0
    storage.replace("verified/continuous.json", b'{"changes_ts": 1}')
    assert ContinuousStateFile(storage).load() == ContinuousState()


def test_whichever_of_rows_and_bytes_is_used_up_first_is_waited_for() -> None:
    now = [100.0]
    budget = ReadBudget(1000, 1_000_000, lambda: now[0])
    budget.used(500, 10)
    assert 0.4 < budget.wait_s() <= 0.5
    budget.used(0, 2_000_000)
    assert 1.9 < budget.wait_s() <= 2.1
    now[0] = 103.0
    assert budget.wait_s() == 0
    budget.wait()
    assert (budget.rows, budget.bytes) == (500, 2_000_010)
