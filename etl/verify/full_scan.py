"""Scan the whole database within the days of the settings: table after table, range after range.

The ranges are those of a table's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.etl.changes.formats.key_ranges import KeyColumn, in_range
from sluice.etl.copy.backfill.plan import MAX_KEYLESS_BYTES
from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.copy.backfill.upstream_catalog import TableSize
from sluice.etl.verify.continuous_state import ScanState
from sluice.tidb.schema import Table

__all__ = ["FullScan", "ScanRange"]

SCAN_RANGE_ROWS = 2_000
_DAY_MS = 86_400_000

Low = list[str] | None


class RangeBounds(Protocol):
    """Find keys at which ranges can be cut, as of the checkpoint.

    Raises CopyError, BackfillError.
    """

    def key_behind(
        self, table: Table, key: list[KeyColumn], within: tuple[Low, Low], rows: int
    ) -> Low:
        """Return the key, as literals, behind the first `rows` rows of a range [low, high).

        None if there aren't more.
        """


class TableSizes(Protocol):
    """Estimate the sizes of tables. Raises CopyError."""

    def sizes(self) -> Mapping[str, TableSize]:
        """Return the tables' sizes by full name."""


@dataclass(frozen=True, slots=True)
class ScanRange:
    """The rows to compare next: those for which `condition` holds, "" for all of the table.

    `behind`: where the next stretch begins, None if this is the table's last.
    """

    table: Table
    condition: str
    behind: Low


class FullScan:
    """Cut the round through all tables into ranges; `sweep` is updated on the way.

    `merged`: the tables that are compared together, by the full name of the one that stands for
    them.
    """

    def __init__(self, sweep: ScanState, days: int, known: TableSizes) -> None:
        self.sweep = sweep
        self._period_ms = days * _DAY_MS
        self._known = known
        self._sizes: Mapping[str, TableSize] = {}
        self.merged: Mapping[str, Sequence[Table]] = {}

    def is_due(self, now_ms: int) -> bool:
        """Return whether the next range should be compared now.

        Begins a round when it is time for one.
        """
        sweep = self.sweep
        if not sweep.began_ms or (sweep.is_over and now_ms >= sweep.began_ms + self._period_ms):
            self._begin(now_ms)
        return not sweep.is_over and sweep.done * self._period_ms <= sweep.total * (
            now_ms - sweep.began_ms
        )

    def is_late(self, now_ms: int) -> bool:
        """Return whether the round takes longer than it should."""
        return not self.sweep.is_over and now_ms > self.sweep.began_ms + self._period_ms

    def next(self, tables: Sequence[Table], ends: RangeBounds) -> ScanRange | None:
        """Return the next range of these tables; None if the round is over.

        Raises as `RangeBounds` and `TableSizes`.
        """
        sweep = self.sweep
        left = sorted(
            (t for t in tables if t.full_name >= sweep.table), key=lambda table: table.full_name
        )
        for table in left:
            if table.full_name != sweep.table:
                self._enter_table(table.full_name)
            key = range_key(table)
            if not key:
                if self._size(table.full_name).bytes <= MAX_KEYLESS_BYTES:
                    return ScanRange(table, "", None)
                self._leave_table()
                continue
            low = sweep.low if sweep.low is not None and len(sweep.low) == len(key) else None
            behind = self._key_after(table, key, low, ends)
            condition = in_range(key, low, behind)
            return ScanRange(table, "" if condition == "TRUE" else condition, behind)
        sweep.is_over = True
        return None

    def _key_after(self, table: Table, key: list[KeyColumn], low: Low, ends: RangeBounds) -> Low:
        """Return the nearest key behind of all tables that are compared together."""
        behind: Low = None
        for one in self.merged.get(table.full_name, (table,)):
            behind = ends.key_behind(one, key, (low, behind), SCAN_RANGE_ROWS) or behind
        return behind

    def did(self, stretch: ScanRange, rows: int) -> None:
        """Record a range of `rows` rows as compared, or as impossible to compare."""
        sweep = self.sweep
        sweep.in_table += rows
        sweep.done += rows
        # More than was thought: it makes the whole larger, and isn't taken for progress.
        beyond = sweep.in_table - self._expected(sweep.table)
        sweep.total += min(rows, max(beyond, 0))
        sweep.low = stretch.behind
        if stretch.behind is None:
            self._leave_table()

    def bytes_of(self, table: Table) -> int:
        """About how large it is."""
        return self._size(table.full_name).bytes

    def _begin(self, now_ms: int) -> None:
        sweep = self.sweep
        self._sizes = self._known.sizes()
        sweep.began_ms, sweep.is_over = now_ms, False
        sweep.table, sweep.low, sweep.in_table, sweep.done = "", None, 0, 0
        together = {
            one.full_name
            for first, tables in self.merged.items()
            for one in tables
            if one.full_name != first
        }
        sweep.total = sum(self._expected(name) for name in self._sizes if name not in together)

    def _enter_table(self, name: str) -> None:
        self.sweep.table, self.sweep.low, self.sweep.in_table = name, None, 0

    def _leave_table(self) -> None:
        """Finish the table: rows that it was expected to have more don't exist.

        The next one has a later name.
        """
        sweep = self.sweep
        sweep.done += max(0, self._expected(sweep.table) - sweep.in_table)
        sweep.table, sweep.low, sweep.in_table = f"{sweep.table}\0", None, 0

    def _expected(self, name: str) -> int:
        """Return how many rows a table is thought to have.

        One of which nothing is known is none that can be left out.
        """
        return max(self._size(name).rows, SCAN_RANGE_ROWS)

    def _size(self, name: str) -> TableSize:
        if not self._sizes:
            self._sizes = self._known.sizes()
        names = [one.full_name for one in self.merged.get(name, ())] or [name]
        sizes = [self._sizes[one] for one in names if one in self._sizes]
        return TableSize(sum(size.rows for size in sizes), sum(size.bytes for size in sizes))
