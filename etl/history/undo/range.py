"""Read the row changes of many past transactions that a search wants, to take them back as one.

A batched DELETE without WHERE is fifty transactions; what they did is one accident. Their changes
count together, row by row: so each row is handled once, however often it was changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sluice.etl.changes.planning import WindowPayload
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.changes.rules import Filter, is_internal_table, only_tables
from sluice.etl.changes.write_plans.identity import identity
from sluice.etl.display_units import counted
from sluice.etl.history.errors import TooManyChangesError, UndoError
from sluice.etl.history.find import SearchQuery, SearchResults, WindowSearch
from sluice.etl.history.find.scan import wanted_tables
from sluice.etl.history.history_log import HistoryLog, LogRange
from sluice.etl.history.undo.transaction import (
    PastChanges,
    TouchedTable,
    as_they_are,
    check_not_moved,
    column_meaning,
)
from sluice.relay import WindowRecord, iter_parts
from sluice.tidb import tso
from sluice.tidb.schema import Table

MAX_CHANGES = 1_000_000
"""Row changes that are taken back as one, all of them in memory."""
_Commit = tuple[int, int]
"""commit_ts and start_ts."""


def read_range(past: HistoryLog, query: SearchQuery, max_changes: int = MAX_CHANGES) -> PastChanges:
    """Read all row changes that the query wants, whatever its limit and order.

    Raises UndoError for what can't be taken back, ConditionError, relay errors, RowDecodeError.
    """
    reader = _RangeReader(query, max_changes)
    for stretch in past.ranges(query.since, query.until):
        for window in stretch.windows():
            reader.add(stretch, window)
    return reader.result(past)


@dataclass(slots=True)
class _Pieces:
    """A table's changes so far: its definition, the first and last commit_ts, and the changes."""

    then: Table
    first_ts: int
    last_ts: int
    changes: list[pa.Table] = field(default_factory=list)


class _RangeReader:
    def __init__(self, query: SearchQuery, max_changes: int) -> None:
        self._query = query
        self._max_changes = max_changes
        self._filter = only_tables(Filter(), query.tables)
        self._found = SearchResults()
        self._tables: dict[int, _Pieces] = {}
        self._changes = 0
        self._commits = set[_Commit]()
        self._partial = set[_Commit]()
        self._others = set[str]()
        self._cluster_id = 0

    def add(self, stretch: LogRange, window: WindowRecord) -> None:
        """Add what a window has. Raises as `read_range`."""
        payload = WindowPayload.from_window(window)
        if not window.parts or not wanted_tables(payload, self._filter):
            return
        search = WindowSearch(stretch.log.storage, self._query)
        mine: dict[int, list[pa.Table]] = {}
        for table, changes in search.matching(payload, self._found):
            self._add_changes(table, changes)
            mine.setdefault(table.id, []).append(changes)
        if mine:
            self._cluster_id = window.cluster_id
            self._note_others(stretch, window, mine)
            schema = RecordedSchema.from_window(window)
            for table_id, pieces in mine.items():
                then = {table_id: self._tables[table_id].then}
                check_not_moved(schema, pa.concat_tables(pieces), then)

    def result(self, past: HistoryLog) -> PastChanges:
        """Return all that was added. Raises UndoError, ConditionError."""
        self._found.check_columns()
        if not self._tables:
            raise UndoError(
                "no such row changes were committed after"
                f" {tso.text(max(self._query.since, past.first))} through"
                f" {tso.text(min(self._query.until, past.last))}",
                hint="`sluice find` with the same options shows what there is",
            )
        now = as_they_are(
            past,
            {i: pieces.then for i, pieces in self._tables.items()},
            {i: pieces.first_ts for i, pieces in self._tables.items()},
        )
        return PastChanges(
            self._cluster_id,
            min(pieces.first_ts for pieces in self._tables.values()),
            max(pieces.last_ts for pieces in self._tables.values()),
            len(self._commits),
            [
                TouchedTable(pieces.then, now[i][0], _in_order(pieces.changes), now[i][1])
                for i, pieces in self._tables.items()
            ],
            tuple(sorted(self._others)),
            len(self._partial),
            tuple(self._found.lacking_texts),
        )

    def _add_changes(self, table: Table, changes: pa.Table) -> None:
        ts = changes["commit_ts"].to_numpy()
        first, last = int(ts.min()), int(ts.max())
        known = self._tables.setdefault(table.id, _Pieces(table, first, last))
        if _definition(known.then) != _definition(table):
            raise UndoError(
                f"{table.full_name}: DDL changed its definition between commit_ts"
                f" {tso.text(known.last_ts)} and {tso.text(first)}: changes before and after it"
                " can't be taken back as one",
                hint=(
                    f"take back the later ones first, with `--since {known.last_ts}`, then the"
                    f" others with `--until {known.last_ts}`"
                ),
            )
        known.then = table
        known.last_ts = max(known.last_ts, last)
        known.first_ts = min(known.first_ts, first)
        known.changes.append(changes)
        self._changes += len(ts)
        if self._changes > self._max_changes:
            raise TooManyChangesError(
                f"there are more than {counted(self._max_changes, 'row change')}: too many to"
                " take back as"
                " one",
                hint=(
                    "narrow --since, --until, --table or --where; or restore the tables beside with"
                    " `sluice restore`"
                ),
            )

    def _note_others(
        self, stretch: LogRange, window: WindowRecord, mine: dict[int, list[pa.Table]]
    ) -> None:
        """Note which of the window's transactions made other changes, too, and of which tables."""
        selected = Counter[tuple[_Commit, int]]()
        for table_id, pieces in mine.items():
            for commit, count in _commits(pa.concat_tables(pieces)):
                selected[commit, table_id] += count
        commits = {commit for commit, _ in selected}
        self._commits |= commits
        timeline = SchemaTimeline.from_window(window)
        for batch in iter_parts(stretch.log.storage, window.parts):
            changes = pa.Table.from_batches([batch])
            ids = changes["table_id"].to_numpy()
            for table_id in np.unique(ids).tolist():
                if is_internal_table(table_id):
                    continue
                for commit, count in _commits(changes.filter(pa.array(ids == table_id))):
                    if commit in commits:
                        selected[commit, table_id] -= count
        for (commit, table_id), left in selected.items():
            if left:
                self._partial.add(commit)
                table = timeline.find(table_id, commit[0])
                if table is not None and table_id not in mine:
                    self._others.add(table.full_name)


def _commits(changes: pa.Table) -> list[tuple[_Commit, int]]:
    """Return the transactions of changes, each with how many there are."""
    both = np.stack((changes["commit_ts"].to_numpy(), changes["start_ts"].to_numpy()))
    found, counts = np.unique(both, axis=1, return_counts=True)
    return [
        ((commit_ts, start_ts), count)
        for (commit_ts, start_ts), count in zip(found.T.tolist(), counts.tolist(), strict=True)
    ]


def _in_order(pieces: list[pa.Table]) -> pa.Table:
    changes = pa.concat_tables(pieces)
    order = np.lexsort([changes[name].to_numpy() for name in ("start_ts", "commit_ts")])
    return changes.take(pa.array(order)).combine_chunks()


def _definition(table: Table) -> tuple[object, ...]:
    """Return what the rows of a table depend on."""
    stored = [(column.id, column_meaning(column)) for column in table.stored_columns]
    return stored, identity(table)
