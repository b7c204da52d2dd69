"""Count past row changes by table, kind, minute and size of their transaction.

`sluice.etl.history.find.bursts` tells what stands out among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.planning import WindowPayload
from sluice.etl.history.find.query import ROW_KINDS, SearchQuery
from sluice.etl.history.find.recent import BackwardScan, SkippedWindow, TimeBudget
from sluice.etl.history.find.results import SearchResults
from sluice.etl.history.find.scan import WindowSearch
from sluice.etl.history.history_log import HistoryLog
from sluice.tidb import tso
from sluice.tidb.schema import Table

__all__ = ["Activity", "Cell", "Series", "recent_activity"]

ACTIVITY_BUDGET_S = 8.0
"""People wait this long for a page that has to look at hours."""
_MINUTE = tso.span(60_000)
_NAMES = {number: name for name, number in ROW_KINDS.items()}


@dataclass(slots=True)
class Cell:
    """Transactions of one minute and size, with their row changes of one table and kind.

    `least`, `most`: changes of the smallest and of the largest of them; the rest as in FoundGroup.
    """

    transactions: int
    rows: int
    least: int
    most: int
    first_ts: int
    last_ts: int

    def add(self, other: Cell) -> None:
        """Add other transactions."""
        self.transactions += other.transactions
        self.rows += other.rows
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        self.first_ts = min(self.first_ts, other.first_ts)
        self.last_ts = max(self.last_ts, other.last_ts)


Series = dict[tuple[int, int], Cell]
"""Cells by minute (since TSO 0) and size, the number of bits of a transaction's changes."""


@dataclass(slots=True)
class Activity:
    """Row changes that were committed after `through` through `last` (TSO).

    `series`: by table and kind. `complete`: no earlier ones are kept or wanted; else `problem` and
    `hint` may tell why the search ended. `large`: windows that were not read.
    """

    last: int
    through: int = 0
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    large: list[SkippedWindow] = field(default_factory=list)
    complete: bool = False
    problem: str = ""
    hint: str = ""

    def add(self, changes: Iterable[tuple[Table, pa.Table]]) -> None:
        """Count the changes (PART_SCHEMA) of a window, which holds whole transactions."""
        pieces: dict[str, list[np.ndarray]] = {}
        for table, some in changes:
            columns = [some[name].to_numpy() for name in ("commit_ts", "start_ts", "kind")]
            pieces.setdefault(table.full_name, []).append(np.stack(columns).astype(np.int64))
        for name, found in pieces.items():
            for kind, minute, size, cell in _cells(np.concatenate(found, axis=1)):
                series = self.series.setdefault((name, _NAMES[kind]), {})
                known = series.setdefault((minute, size), cell)
                if known is not cell:
                    known.add(cell)


def _cells(changes: np.ndarray) -> Iterable[tuple[int, int, int, Cell]]:
    """Yield kind, minute, size and cell of the changes of one table."""
    ordered = changes[:, np.lexsort(changes[::-1])]
    begins = np.flatnonzero(np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)))
    counts = np.diff(np.append(begins, ordered.shape[1]))
    commits, _, kinds = ordered[:, begins]
    sizes = np.frexp(counts)[1].astype(np.int64)
    keys, places = np.unique(
        np.stack((kinds, commits // _MINUTE, sizes)), axis=1, return_inverse=True
    )
    places = places.ravel()
    for number, (kind, minute, size) in enumerate(keys.T.tolist()):
        mine = places == number
        rows, at = counts[mine], commits[mine]
        yield (
            kind,
            minute,
            size,
            Cell(
                len(rows),
                int(rows.sum()),
                int(rows.min()),
                int(rows.max()),
                int(at.min()),
                int(at.max()),
            ),
        )


def recent_activity(
    past: HistoryLog, query: SearchQuery, patience: TimeBudget | None = None
) -> Activity:
    """Return the row changes that the query wants, as far back as the time budget reaches.

    `group`, `order`, `limit` and `min_rows` of the query count for nothing. Raises ConditionError,
    relay errors where nothing was found before them.
    """
    rows_only = replace(query, order="newest", group=(), min_rows=1)
    look = _ActivityScan(past, rows_only, patience or TimeBudget(ACTIVITY_BUDGET_S))
    found = look.activity
    try:
        look.run()
    except (SluiceError, OSError) as error:
        if not found.series:
            raise
        found.problem, found.hint = str(error), getattr(error, "hint", "")
    found.large, found.complete = look.done.large, look.done.complete
    found.through = look.done.through
    if found.complete:  # a pipeline's first window may reach back to before all changes
        cells = (cell.first_ts for series in found.series.values() for cell in series.values())
        found.through = max(query.since, past.first, min(cells, default=1) - 1)
    return found


class _ActivityScan(BackwardScan):
    def __init__(self, past: HistoryLog, query: SearchQuery, patience: TimeBudget) -> None:
        super().__init__(past, query, patience)
        self.activity = Activity(min(query.until, past.last))

    def collect(self, scan: WindowSearch, window: WindowPayload, through: int) -> int:
        self.activity.add(scan.matching(window, SearchResults()))
        return through
