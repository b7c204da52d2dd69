"""Rows compared at checkpoints: what isn't the same is looked at again at a later one, and reported if it isn't then,
either; and from then on looked at now and then, until it is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from errors import Signal, SluiceError
from etl.backfill.table_key import range_key
from etl.base.downstream_reader import TableChanged
from etl.reapply.newest_rows import condition_of
from etl.verify.budget import Budget
from etl.verify.continuous_state import SUSPECTS_KEPT, ContinuousState, Suspect
from etl.verify.differences import differences_of
from etl.verify.live_rows import LiveRows
from etl.verify.rows_apart import Apart, keys_apart, keys_bytes
from etl.verify.side import Difference
from upstream.schema import Table

__all__ = ["Checks", "PassOverError"]

log = logging.getLogger("sluice.verify")

_AGAIN_MS = 60_000
"""How often rows are looked at that are known to differ."""
_TRIES = 3
_SHOWN = 50


class PassOverError(Signal):
    """Nothing more can be read at this checkpoint."""


class Checks:
    """What is found goes into `state`. `read`: by table the newest checkpoint (TSO) at which rows were compared, how
    many, and their bytes. `compared`: how often rows could be compared; `problems`: why those of a table couldn't be
    when they were looked at last. `differences`: the first ones that were reported.
    """

    def __init__(self, state: ContinuousState, budget: Budget) -> None:
        self._state = state
        self._budget = budget
        self._tries: Counter[str] = Counter()
        self._news = 0
        self.read: dict[str, tuple[int, int, int]] = {}
        self.compared = 0
        self.problems: dict[str, str] = {}
        self.looked_at_again = 0
        self.differences: list[Difference] = []
        self.notes: list[str] = []

    def has_news(self) -> bool:
        """Whether something was reported, or came to be the same, since this was asked last."""
        news, self._news = self._news, 0
        return bool(news)

    def is_due(self, now_ms: int) -> bool:
        """Whether rows are to be looked at again."""
        return any(_is_due(one, now_ms) for one in self._state.suspects)

    def first(self, rows: LiveRows, table: Table, condition: str) -> int:
        """Compare rows of a table for the first time; how many the upstream has. Raises PassOverError."""
        before = self._rows_of(table)
        found = self._compared(rows, table, condition)
        if found is not None and found.count:
            self._suspect(found, rows.ts)
        return self._rows_of(table) - before

    def again(self, rows: LiveRows, tables: Mapping[int, Table], now_ms: int) -> Iterator[Callable[[], None]]:
        """Each of the suspects that it is time for. Tables that aren't in `tables` are left for later, unless they are
        gone.
        """
        known = {table.full_name for table in rows.tables.values()}
        by_name = {table.full_name: table for table in tables.values()}
        for suspect in [one for one in self._state.suspects if _is_due(one, now_ms) and one.seen_ts < rows.ts]:
            if suspect.table in by_name:
                yield partial(self._look_again, rows, by_name[suspect.table], suspect, now_ms)
            elif suspect.table not in known:
                self._forget(suspect)

    def _look_again(self, rows: LiveRows, table: Table, suspect: Suspect, now_ms: int) -> None:
        suspect.looked_ms = now_ms
        self.looked_at_again += 1
        found = self._compared(rows, table, suspect.condition)
        if found is None and suspect.confirmed:
            return
        if found is None or not found.count:
            if suspect.confirmed:
                log.info("%s: %d rows that differed are the same now", table.full_name, suspect.rows)
                self._news += 1
            self._forget(suspect)
            return
        if not suspect.confirmed:
            self._report(found, rows.ts)
        suspect.confirmed, suspect.rows, suspect.seen_ts = True, found.count, rows.ts

    def _report(self, found: Apart, ts: int) -> None:
        self._news += 1
        some = differences_of(found, _SHOWN)
        for one in some[:3]:
            log.error("%s differs at the checkpoint %d: %s %s", one.table, ts, one.kind, dict(one.key))
        self.differences += some[: max(0, _SHOWN - len(self.differences))]

    def _suspect(self, found: Apart, ts: int) -> None:
        if len(self._state.suspects) >= SUSPECTS_KEPT:
            return
        table = found.table
        own = [one for one in self._state.suspects if one.table == table.full_name]
        if not range_key(table):
            if not own:
                self._state.suspects.append(Suspect(table.full_name, "", ts, rows=found.count))
            return
        # What is known already isn't counted again, though another stretch came by it.
        known = {key for one in own for key in one.keys}
        apart = keys_apart(found)
        names = [key.hex() for key in keys_bytes(table, apart)]
        fresh = {name: at for at, name in enumerate(names) if name not in known}
        if fresh:
            condition = condition_of(table, apart.take(pa.array(sorted(fresh.values()))))
            self._state.suspects.append(Suspect(table.full_name, condition, ts, rows=len(fresh), keys=list(fresh)))

    def _forget(self, suspect: Suspect) -> None:
        self._state.suspects.remove(suspect)

    def _compared(self, rows: LiveRows, table: Table, condition: str) -> Apart | None:
        """None if it can't be, after some tries. Raises PassOverError before."""
        name = table.full_name
        try:
            found = rows.compare(table, condition)
        except SluiceError as error:
            if error.transient and not isinstance(error, TableChanged):
                raise
            log.info("%s can't be compared at the checkpoint %d: %s", name, rows.ts, error)
            self._tries[name] += 1
            if self._tries[name] < _TRIES:
                raise PassOverError from error
            self._tries[name] = 0
            if not isinstance(error, TableChanged):
                self.problems[name] = f"some rows could not be compared: {error}"
                self._news += 1
            self.notes.append(f"{name}: some rows could not be compared: {error}")
            return None
        self._tries.pop(name, None)
        self.problems.pop(name, None)
        self.compared += 1
        self._budget.used(2 * found.rows, 2 * found.bytes)
        _, count, size = self.read.get(name, (0, 0, 0))
        self.read[name] = rows.ts, count + found.rows, size + found.bytes
        return found.apart

    def _rows_of(self, table: Table) -> int:
        return self.read.get(table.full_name, (0, 0, 0))[1]


def _is_due(one: Suspect, now_ms: int) -> bool:
    return not one.confirmed or now_ms - one.looked_ms >= _AGAIN_MS
