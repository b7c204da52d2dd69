"""Search backwards, the newest first, in the time that a person waits for a page.

The result has the position to continue from. Spark isn't needed: of the windows without matching
tables only the record is read, and what belongs to other tables of a segment stays unread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from sluice.errors import SluiceError
from sluice.etl.changes.planning import WindowPayload
from sluice.etl.changes.rules import Filter, is_internal_table, only_tables
from sluice.etl.history.errors import SearchDeadlineError
from sluice.etl.history.find.query import SearchQuery
from sluice.etl.history.find.results import (
    FoundDdl,
    FoundGroup,
    FoundTransaction,
    commit_order,
    joined_groups,
    whole_timestamps,
)
from sluice.etl.history.find.scan import WindowSearch
from sluice.etl.history.history_log import HistoryLog, LogRange
from sluice.relay import WindowRecord
from sluice.relay.archive import ArchiveLog
from sluice.tidb.id_maps import names_by_id

__all__ = [
    "MAX_BYTES",
    "MAX_CHANGES",
    "BackwardScan",
    "RecentPage",
    "SkippedWindow",
    "TimeBudget",
    "recent_page",
]

TIME_BUDGET_S = 0.6
DEADLINE_S = 5.0
"""A window whose rows take longer than this is left to `sluice find`: Airflow's API server also
runs the tasks' API.
"""
MAX_CHANGES = 500_000
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SkippedWindow:
    """A window that is too large to be searched here.

    `changes`, `bytes`: those of wanted tables.
    """

    lo: int
    hi: int
    changes: int
    bytes: int


@dataclass(slots=True)
class RecentPage:
    """A page of results: all that was committed after `through` (TSO) has been searched.

    Continue with it as the query's `until`, unless `complete`. `unknown`: columns of the condition
    that no table had until then. `unknown_table`: that the history knows no such table, and what
    was meant. `problem`, `hint`: why it can't continue.
    """

    through: int
    found: list[FoundTransaction | FoundDdl] = field(default_factory=list)
    """The newest first."""
    large: list[SkippedWindow] = field(default_factory=list)
    complete: bool = False
    windows: int = 0
    """The number of windows searched."""
    groups: list[FoundGroup] = field(default_factory=list)
    """In place of `found`, for a query that groups."""
    unknown: list[str] = field(default_factory=list)
    unknown_table: str = ""
    problem: str = ""
    hint: str = ""


class TimeBudget:
    """A search's time: `over` after `seconds`, and at the latest at `deadline_s`."""

    def __init__(
        self,
        seconds: float = TIME_BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._deadline = self._until + deadline_s
        self._deadline_s = deadline_s

    def over(self) -> bool:
        return self._clock() >= self._until

    def check(self) -> None:
        """Raise SearchDeadlineError once the deadline has passed."""
        if self._clock() >= self._deadline:
            raise SearchDeadlineError(
                f"the search of one window took longer than {self._deadline_s:.0f} s"
            )


def recent_page(
    past: HistoryLog, query: SearchQuery, patience: TimeBudget | None = None
) -> RecentPage:
    """Return the newest transactions and DDL that the query wants.

    They are `limit` of both together (and those that share the last one's commit_ts), as far as the
    time budget `patience` reaches; at least one window is searched. With `group` all transactions
    of these windows are counted by group, DDL left out. Raises ConditionError, relay errors where
    nothing was found before them.
    """
    look = BackwardScan(past, replace(query, order="newest"), patience or TimeBudget())
    try:
        look.run()
    except (SluiceError, OSError) as error:
        if not (look.done.found or look.done.groups):
            raise
        look.done.problem, look.done.hint = str(error), getattr(error, "hint", "")
    return look.done


class BackwardScan:
    """Search windows of a log, the newest first; a subclass may collect something else of them."""

    def __init__(self, past: HistoryLog, query: SearchQuery, patience: TimeBudget) -> None:
        self._past = past
        self._query = query
        self._patience = patience
        self._filter = only_tables(Filter(), query.tables)
        self._known: dict[tuple[str, str], bool] = {}
        self.done = RecentPage(min(query.until, past.last))

    def run(self) -> None:
        for stretch in reversed(self._past.ranges(self._query.since, self._query.until)):
            scan = WindowSearch(stretch.log.storage, self._query, self._patience.check)
            for window in stretch.log.backwards(stretch.until, stretch.since):
                self._window(stretch, scan, window)
                if len(self.done.found) >= self._query.limit or self._patience.over():
                    return
        self.done.complete = True

    def _window(self, stretch: LogRange, scan: WindowSearch, window: WindowRecord) -> None:
        self.done.windows += 1
        document = WindowPayload.from_window(window)
        ids = self._wanted(document) if self._query.row_kinds and window.parts else set()
        if ids and isinstance(stretch.log, ArchiveLog):
            window = stretch.log.only(window, ids)
            document = WindowPayload.from_window(window)
        size = sum(part.bytes for part in window.parts)
        if ids and (window.changes > MAX_CHANGES or size > MAX_BYTES):
            self.done.large.append(SkippedWindow(window.lo, window.hi, window.changes, size))
            document = replace(document, parts=())
        through = max(window.lo, stretch.since)
        if ids or (window.ddls and self._query.wants_ddl):
            through = self.collect(scan, document, through)
        self.done.through = through

    def collect(self, scan: WindowSearch, window: WindowPayload, through: int) -> int:
        """Take what a window holds; return the TSO after which that is all, `through` or later."""
        found = scan(window)
        self.done.unknown = found.unknown or []
        if self._query.group:
            self.done.groups = joined_groups(self.done.groups, found.groups)
            return through
        room = self._query.limit - len(self.done.found)
        both: list[FoundTransaction | FoundDdl] = [*found.transactions, *found.ddls]
        both.sort(key=commit_order, reverse=True)
        room = whole_timestamps([each.commit_ts for each in both], room)
        self.done.found += both[:room]
        left = found.counts["transactions"] + found.counts["ddls"] > room
        return both[:room][-1].commit_ts - 1 if left and room else through

    def _wanted(self, window: WindowPayload) -> set[int]:
        return {
            i
            for i, schema, name in _named_tables(window)
            if self._wants(schema, name) and not is_internal_table(i)
        }

    def _wants(self, schema: str, name: str) -> bool:
        wanted = self._known.get((schema, name))
        if wanted is None:
            wanted = self._known[schema, name] = self._filter.wants_table(schema, name)
        return wanted


def _named_tables(window: WindowPayload) -> Iterator[tuple[int, str, str]]:
    for tables in (window.schema.tables, *(ddl.effect.tables for ddl in window.schema.ddls)):
        yield from names_by_id(tables)
