"""Compare differing rows again at a later checkpoint, and report those that still differ.

From then on they are compared now and then, until they are equal.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from sluice.errors import Signal, SluiceError
from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.copy.backfill.throttle import ReadBudget
from sluice.etl.history.snapshots.consistent_reader import TableChanged
from sluice.etl.verify.continuous_state import (
    MAX_PENDING_MISMATCHES,
    ContinuousState,
    PendingMismatch,
)
from sluice.etl.verify.differences import differences_of
from sluice.etl.verify.endpoint import Difference
from sluice.etl.verify.live_rows import LiveRows
from sluice.etl.verify.reapply.latest_rows import condition_of
from sluice.etl.verify.row_diff import RowDiff, differing_keys, keys_bytes
from sluice.tidb.schema import Table

__all__ = ["Recheck", "SnapshotExpired"]

log = logging.getLogger("sluice.verify")

_RECHECK_INTERVAL_MS = 60_000
"""Interval at which rows that are known to differ are compared again."""
_MAX_ATTEMPTS = 3
_MAX_SHOWN = 50


class SnapshotExpired(Signal):
    """The snapshots of this checkpoint can't be read any more."""


class Recheck:
    """Compare suspected rows again, and note findings in `state`.

    `read`: by table the newest checkpoint (TSO) at which rows were compared, how many, and their
    bytes. `compared`: how often rows could be compared; `problems`: why those of a table couldn't
    be when they were looked at last. `differences`: the first ones that were reported.
    """

    def __init__(self, state: ContinuousState, budget: ReadBudget) -> None:
        self._state = state
        self._budget = budget
        self._attempts: Counter[str] = Counter()
        self._news = 0
        self.read: dict[str, tuple[int, int, int]] = {}
        self.compared = 0
        self.problems: dict[str, str] = {}
        self.looked_at_again = 0
        self.differences: list[Difference] = []
        self.notes: list[str] = []

    def has_news(self) -> bool:
        """Return whether a row was reported, or became the same, since the last call."""
        news, self._news = self._news, 0
        return bool(news)

    def is_due(self, now_ms: int) -> bool:
        """Return whether rows are to be compared again now."""
        return any(_is_due(one, now_ms) for one in self._state.suspects)

    def first(self, rows: LiveRows, table: Table, condition: str) -> int:
        """Compare rows of a table for the first time; how many the upstream has.

        Raises SnapshotExpired.
        """
        before = self._rows_of(table)
        found = self._compared(rows, table, condition)
        if found is not None and found.count:
            self._add_pending(found, rows.ts)
        return self._rows_of(table) - before

    def again(
        self, rows: LiveRows, tables: Mapping[int, Table], now_ms: int
    ) -> Iterator[Callable[[], None]]:
        """Yield each suspect that is due.

        Tables that aren't in `tables` are left for later, unless they are gone.
        """
        known = {table.full_name for table in rows.tables.values()}
        by_name = {table.full_name: table for table in tables.values()}
        for suspect in [
            one for one in self._state.suspects if _is_due(one, now_ms) and one.seen_ts < rows.ts
        ]:
            if suspect.table in by_name:
                yield partial(self._retry_one, rows, by_name[suspect.table], suspect, now_ms)
            elif suspect.table not in known:
                self._forget(suspect)

    def _retry_one(
        self, rows: LiveRows, table: Table, suspect: PendingMismatch, now_ms: int
    ) -> None:
        suspect.looked_ms = now_ms
        self.looked_at_again += 1
        found = self._compared(rows, table, suspect.condition)
        if found is None and suspect.confirmed:
            return
        if found is None or not found.count:
            if suspect.confirmed:
                log.info(
                    "%s: %d rows that differed are the same now", table.full_name, suspect.rows
                )
                self._news += 1
            self._forget(suspect)
            return
        if not suspect.confirmed:
            self._report(found, rows.ts)
        suspect.confirmed, suspect.rows, suspect.seen_ts = True, found.count, rows.ts

    def _report(self, found: RowDiff, ts: int) -> None:
        self._news += 1
        some = differences_of(found, _MAX_SHOWN)
        for one in some[:3]:
            log.error(
                "%s differs at the checkpoint %d: %s %s", one.table, ts, one.kind, dict(one.key)
            )
        self.differences += some[: max(0, _MAX_SHOWN - len(self.differences))]

    def _add_pending(self, found: RowDiff, ts: int) -> None:
        if len(self._state.suspects) >= MAX_PENDING_MISMATCHES:
            return
        table = found.table
        own = [one for one in self._state.suspects if one.table == table.full_name]
        if not range_key(table):
            if not own:
                self._state.suspects.append(
                    PendingMismatch(table.full_name, "", ts, rows=found.count)
                )
            return
        # What is known already isn't counted again, though another stretch came by it.
        known = {key for one in own for key in one.keys}
        apart = differing_keys(found)
        names = [key.hex() for key in keys_bytes(table, apart)]
        fresh = {name: at for at, name in enumerate(names) if name not in known}
        if fresh:
            condition = condition_of(table, apart.take(pa.array(sorted(fresh.values()))))
            self._state.suspects.append(
                PendingMismatch(table.full_name, condition, ts, rows=len(fresh), keys=list(fresh))
            )

    def _forget(self, suspect: PendingMismatch) -> None:
        self._state.suspects.remove(suspect)

    def _compared(self, rows: LiveRows, table: Table, condition: str) -> RowDiff | None:
        """None if it can't be, after some tries. Raises SnapshotExpired before."""
        name = table.full_name
        try:
            found = rows.compare(table, condition)
        except SluiceError as error:
            if error.transient and not isinstance(error, TableChanged):
                raise
            log.info("%s can't be compared at the checkpoint %d: %s", name, rows.ts, error)
            self._attempts[name] += 1
            if self._attempts[name] < _MAX_ATTEMPTS:
                raise SnapshotExpired from error
            self._attempts[name] = 0
            if not isinstance(error, TableChanged):
                self.problems[name] = f"some rows could not be compared: {error}"
                self._news += 1
            self.notes.append(f"{name}: some rows could not be compared: {error}")
            return None
        self._attempts.pop(name, None)
        self.problems.pop(name, None)
        self.compared += 1
        self._budget.used(2 * found.rows, 2 * found.bytes)
        _, count, size = self.read.get(name, (0, 0, 0))
        self.read[name] = rows.ts, count + found.rows, size + found.bytes
        return found.apart

    def _rows_of(self, table: Table) -> int:
        return self.read.get(table.full_name, (0, 0, 0))[1]


def _is_due(one: PendingMismatch, now_ms: int) -> bool:
    return not one.confirmed or now_ms - one.looked_ms >= _RECHECK_INTERVAL_MS
