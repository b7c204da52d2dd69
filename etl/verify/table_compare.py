"""Tables of both sides, compared by several threads, each over a session of its own on both."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from sluice.etl.changes.formats.key_ranges import key_columns
from sluice.etl.history.snapshots.consistent_reader import TableChanged
from sluice.etl.verify.common_order import common_bounds, is_ordered_by_text, parts_of
from sluice.etl.verify.downstream_endpoint import DownstreamEndpoint
from sluice.etl.verify.endpoint import ComparedTable, KeyRange
from sluice.etl.verify.range_compare import RangeComparer, RangeComparison, merge_ranges
from sluice.etl.verify.upstream_endpoint import UpstreamEndpoint

__all__ = ["ComparedRange", "TableComparer", "TableComparison", "ranges_of"]

RANGE_BYTES = 32 << 20
_MAX_RANGES = 10_000


def ranges_of(
    session: int, up: UpstreamEndpoint, down: DownstreamEndpoint, table: ComparedTable
) -> list[KeyRange]:
    """Return ranges that hold every row once.

    Nothing is counted: the bounds are those of TiDB's regions, or a key that is a number is cut
    evenly between its least and its greatest. Raises what the sides raise.
    """
    parts = min(table.bytes // RANGE_BYTES, _MAX_RANGES)
    if parts < 2 or not table.key:
        return [KeyRange()]
    kept_by = key_columns(table.table)
    if (
        not table.others
        and table.table.handle_kind != "heap"
        and [one.name for one in kept_by] == [one.name for one in table.key]
    ):
        if not is_ordered_by_text(table):
            return up.ranges(table)
        starts = [within.low for within in up.ranges(table) if within.low is not None]
        whole = [bound for bound in starts if len(bound) == len(table.key)]
        orders = (partial(up.in_order, session, table), partial(down.in_order, session, table))
        return parts_of(KeyRange(), common_bounds(whole, *orders))
    if len(table.key) == 1 and table.key[0].kind == "int":
        return down.even_ranges(session, table, parts)
    return [KeyRange()]


@dataclass(frozen=True, slots=True)
class ComparedRange:
    """A range of a table was compared: `rows` of it, `part` of the table's bytes (0 to 1)."""

    table: ComparedTable
    rows: int
    part: float


@dataclass(frozen=True, slots=True)
class TableComparison:
    """A table was compared, or can't be as of the snapshots.

    `changed` has the reason: a DDL came between.
    """

    table: ComparedTable
    found: RangeComparison
    changed: str = ""


@dataclass(slots=True)
class _PartialTable:
    """A table of which ranges are left, or were."""

    table: ComparedTable
    left: int = 0
    ranges: int = 1
    found: RangeComparison = field(default_factory=lambda: RangeComparison(0))
    changed: str = ""


_Task = tuple[int, int, _PartialTable | None, KeyRange | None]
"""Priority, sequence number, the table, and the range of it; None: cut it first. No table: there is
no more.
"""


class TableComparer:
    """Use `run` once."""

    def __init__(self, up: UpstreamEndpoint, down: DownstreamEndpoint) -> None:
        self._up, self._down = up, down
        self._comparing = RangeComparer(up, down)
        self._waiting: queue.PriorityQueue[_Task] = queue.PriorityQueue()
        self._results: queue.SimpleQueue[ComparedRange | TableComparison | BaseException] = (
            queue.SimpleQueue()
        )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(
        self, tables: Sequence[ComparedTable], go_on: Callable[[], bool]
    ) -> Iterator[ComparedRange | TableComparison]:
        """Yield results as they come; every table has its `TableComparison` in the end.

        Nothing is begun once `go_on()` is false, and both sides are closed in the end. Raises what
        the sides raise.
        """
        for table in tables:
            self._put(1, _PartialTable(table), None)
        threads = [
            threading.Thread(
                target=self._work, args=(number,), name=f"verify-{number}", daemon=True
            )
            for number in range(self._down.sessions)
        ]
        for thread in threads:
            thread.start()
        left = len(tables)
        try:
            while left and go_on():
                try:
                    result = self._results.get(timeout=0.2)
                except queue.Empty:
                    continue
                if isinstance(result, BaseException):
                    raise result
                left -= isinstance(result, TableComparison)
                yield result
        finally:
            self._stop.set()
            for _ in threads:
                self._waiting.put((-1, next(self._numbers), None, None))
            self._down.close()  # ends the threads' waits for a server
            self._up.close()
            for thread in threads:
                thread.join()

    def _put(self, priority: int, part: _PartialTable, within: KeyRange | None) -> None:
        self._waiting.put((priority, next(self._numbers), part, within))

    def _work(self, session: int) -> None:
        try:
            while True:
                _, _, part, within = self._waiting.get()
                if part is None or self._stop.is_set():
                    return
                self._compare_range(session, part, within)
        except BaseException as error:
            self._results.put(error)

    def _compare_range(self, session: int, part: _PartialTable, within: KeyRange | None) -> None:
        try:
            if within is None:
                within = self._cut(session, part)
            skipped = part.changed or part.found.is_full
            found = (
                RangeComparison(0, more=1)
                if skipped
                else self._comparing.compare(session, part.table, within)
            )
        except TableChanged as error:
            part.changed = str(error)
            found = RangeComparison(0)
        self._results.put(ComparedRange(part.table, found.rows, 1 / part.ranges))
        with self._lock:
            part.found += found
            part.left -= 1
            is_last = not part.left
        if is_last:
            self._results.put(
                TableComparison(part.table, self._settled(session, part), part.changed)
            )

    def _settled(self, session: int, part: _PartialTable) -> RangeComparison:
        """Return all ranges together.

        Rows that two orders put into two ranges may have been more than are held: then all of the
        table are read.
        """
        found = merge_ranges(part.table, part.found)
        if part.changed or not (found.more and is_ordered_by_text(part.table)):
            return found
        try:
            return self._comparing.whole(session, part.table)
        except TableChanged as error:
            part.changed = str(error)
            return found

    def _cut(self, session: int, part: _PartialTable) -> KeyRange:
        """Return the first range of a table; free threads take the others from the queue."""
        part.left = 1
        first, *others = ranges_of(session, self._up, self._down, part.table)
        part.left = part.ranges = 1 + len(others)
        for within in others:
            self._put(0, part, within)
        return first
