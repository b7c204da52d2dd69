"""Search windows, here or in a Spark worker, and decode only what the query is about."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sluice.etl.changes.planning import BatchPayload, WindowPayload
from sluice.etl.changes.recorded_schema import SchemaTimeline
from sluice.etl.changes.rules import Filter, is_internal_table, only_tables
from sluice.etl.changes.write_plans.raw_changes import DECODE_BATCH_ROWS
from sluice.etl.history.find.condition import ChangeRows, RowCondition
from sluice.etl.history.find.groups import group_matches
from sluice.etl.history.find.key import KeyCondition
from sluice.etl.history.find.matches import (
    MatchingRows,
    by_name,
    images_of_change,
    large_transactions,
    whole_rows,
)
from sluice.etl.history.find.query import SearchQuery
from sluice.etl.history.find.results import (
    FoundDdl,
    SearchResults,
    first_results,
    whole_timestamps,
)
from sluice.etl.spark.worker_tuning import column_values, text_batch, worker_function
from sluice.relay import DELETE, INSERT, UPDATE, iter_parts
from sluice.relay.storage import Storage, open_storage
from sluice.tidb.ddl_actions import REMOVES_ROWS, action_name
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.id_maps import names_by_id
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

_MAX_KEYS_SHOWN = 3
_MAX_STATEMENT_CHARS = 2_000


class ChangeCondition(Protocol):
    """Take the row changes that a search wants."""

    columns: frozenset[str]
    """The columns that the condition names, in lower case."""

    def fits(self, rows: ChangeRows) -> np.ndarray:
        """Return one bool a change. Raises ConditionError."""


class WindowSearch:
    """Look through windows for what a query wants. Raises ConditionError."""

    def __init__(
        self, storage: Storage, query: SearchQuery, check: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare a scan.

        `check` is called before each portion of rows, and ends the scan if it raises.
        """
        self.storage = storage
        self.query = query
        self.check = check
        self.conditions: list[ChangeCondition] = [RowCondition(query.where)] if query.where else []
        self.conditions += [KeyCondition(query.key)] if query.key else []
        self.filter = only_tables(Filter(), query.tables)

    def __call__(self, window: WindowPayload) -> SearchResults:
        """Return what the window holds of the query.

        Raises ConditionError, relay errors and RowDecodeError, with the object's name.
        """
        return _WindowScan(self, window).found()

    def matching(
        self, window: WindowPayload, found: SearchResults
    ) -> Iterator[tuple[Table, pa.Table]]:
        """Yield the row changes that fit (PART_SCHEMA), with their table as it was then.

        Of one table in order. `found` learns which columns the tables lack. Raises as `__call__`.
        """
        return _WindowScan(self, window).matching(found)


def wanted_tables(window: WindowPayload, filters: Filter) -> set[int]:
    """Return the ids of the window's wanted tables, under any of their names in it."""
    named = [window.schema.tables, *(ddl.effect.tables for ddl in window.schema.ddls)]
    found = {place for tables in named for place in names_by_id(tables)}
    return {
        i
        for i, schema, name in found
        if not is_internal_table(i) and filters.wants_table(schema, name)
    }


class _WindowScan:
    def __init__(self, of: WindowSearch, window: WindowPayload) -> None:
        self._storage = of.storage
        self._query = of.query
        self._conditions = of.conditions
        self._filter = of.filter
        self._check = of.check
        self._window = window
        self._tables = SchemaTimeline(window.schema)

    def found(self) -> SearchResults:
        found = SearchResults()
        if self._query.wants_ddl:
            found.ddls = list(self._ddls())
            found.counts["ddls"] = len(found.ddls)
            found.ddls = first_results(found.ddls, self._query)
        self._rows(found)
        return found

    def matching(self, found: SearchResults) -> Iterator[tuple[Table, pa.Table]]:
        fitting = self._fitting(found)
        if self._query.min_rows > 1:  # a window holds whole transactions, parts of it need not
            return large_transactions(list(fitting), self._query.min_rows)
        return fitting

    def _fitting(self, found: SearchResults) -> Iterator[tuple[Table, pa.Table]]:
        ids = (
            wanted_tables(self._window, self._filter)
            if self._query.row_kinds and self._window.parts
            else ()
        )
        if not ids:
            return
        found.counts["windows"] = 1
        found.counts["bytes"] = sum(part.bytes for part in self._window.parts)
        wanted = pa.array(sorted(ids), pa.int64()).to_numpy()
        for batch in iter_parts(self._storage, self._window.parts):
            changes = pa.Table.from_batches([batch])
            yield from self._match(changes.filter(pa.array(self._mask(changes, wanted))), found)

    def _ddls(self) -> Iterator[FoundDdl]:
        query = self._query
        for ddl in self._window.schema.ddls:
            if ddl.has_only_begun:
                continue  # one line a job: its last binlog's
            drops = ddl.type in REMOVES_ROWS
            if query.since < ddl.commit_ts <= query.until and (drops or not query.only_drops):
                names = self._names(ddl)
                if not query.tables or names:
                    text = " ".join(ddl.query.split())[:_MAX_STATEMENT_CHARS]
                    yield FoundDdl(
                        ddl.commit_ts, action_name(ddl.type), text, names, drops, ddl.start_ts
                    )

    def _names(self, ddl: DdlJob) -> tuple[str, ...]:
        """Return the wanted tables that a DDL is about, under their names before and after it."""
        both = (*self._tables.before(ddl).values(), *ddl.effect.tables.values())
        names = {(table.schema_name, table.name) for table in both if table is not None}
        if ddl.table_name:
            names.add((ddl.schema_name, ddl.table_name))
        return tuple(sorted(full_name(*name) for name in names if self._filter.wants_table(*name)))

    def _rows(self, found: SearchResults) -> None:
        matches = MatchingRows()
        for table, changes in self.matching(found):
            matches.add(table, changes)
        if matches.is_empty():
            return
        joined = matches.joined()
        starts, sizes = joined.bounds()
        found.counts["transactions"] = len(starts)
        for name, kind in (("inserts", INSERT), ("updates", UPDATE), ("deletes", DELETE)):
            found.counts[name] = int(np.count_nonzero(joined.kinds == kind))
        if self._query.group:
            found.groups = group_matches(joined, self._query.group)
            return
        limit = self._query.limit
        chosen = {
            "size": np.argsort(-sizes, kind="stable"),
            "time": np.arange(len(starts)),
            "newest": np.arange(len(starts))[::-1],
        }[self._query.order]
        if self._query.order != "size":
            limit = whole_timestamps(joined.commit_ts[starts[chosen]].tolist(), limit)
        found.transactions = [
            joined.transaction(int(starts[i]), int(starts[i] + sizes[i]))
            for i in chosen[:limit].tolist()
        ]

    def _mask(self, changes: pa.Table, ids: np.ndarray) -> np.ndarray:
        query = self._query
        ts = changes["commit_ts"].to_numpy()
        mask = (
            (ts > query.since) & (ts <= query.until) & np.isin(changes["table_id"].to_numpy(), ids)
        )
        wanted: np.ndarray = mask & np.isin(changes["kind"].to_numpy(), sorted(query.row_kinds))
        return wanted

    def _match(self, changes: pa.Table, found: SearchResults) -> Iterator[tuple[Table, pa.Table]]:
        ids = changes["table_id"].to_numpy()
        for table_id in np.unique(ids).tolist():
            mine = changes.filter(pa.array(ids == table_id))
            bounds = [0, *self._tables.changed_at(table_id), np.iinfo(np.int64).max]
            ts = mine["commit_ts"].to_numpy()
            cuts = np.searchsorted(ts, bounds, side="right").tolist()
            for begin, end in itertools.pairwise(cuts):
                if begin < end:
                    yield from self._match_version(table_id, mine.slice(begin, end - begin), found)

    def _match_version(
        self, table_id: int, changes: pa.Table, found: SearchResults
    ) -> Iterator[tuple[Table, pa.Table]]:
        """Match changes of one table by one definition."""
        table = self._tables.find(table_id, int(changes["commit_ts"][0].as_py()))
        if table is None or not self._filter.wants_table(table.schema_name, table.name):
            return
        for condition in self._conditions:
            if condition.columns:
                columns = {folded(column.name) for column in table.stored_columns}
                found.count(table.full_name, condition.columns - columns)
            changes = changes.filter(pa.array(self._matches(condition, table, changes)))
        if changes.num_rows:
            yield table, changes

    def _matches(self, condition: ChangeCondition, table: Table, changes: pa.Table) -> np.ndarray:
        mask = np.zeros(changes.num_rows, bool)
        kinds = changes["kind"].to_numpy()
        rows = whole_rows(changes["row"])
        for kind in np.unique(kinds).tolist():
            places = np.flatnonzero(kinds == kind)
            for at in range(0, len(places), DECODE_BATCH_ROWS):
                self._check()
                some = places[at : at + DECODE_BATCH_ROWS]
                old, new = images_of_change(table, kind, rows.take(pa.array(some)))
                mask[some] = condition.fits(
                    ChangeRows(table, len(some), by_name(old), by_name(new))
                )
        return mask


@dataclass(frozen=True, slots=True)
class FindInWindows:
    """Search the log at `url` in Spark's workers.

    Each input row is a batch of windows, and becomes a row with the results as JSON.
    """

    url: str
    query: Mapping[str, Any]

    @worker_function
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query = SearchQuery.from_json(self.query)
        scan = WindowSearch(open_storage(self.url), query)
        for text in column_values(batches):
            yield text_batch(_found(scan, query, text))


def _found(scan: WindowSearch, query: SearchQuery, text: str) -> str:
    windows = BatchPayload.from_text(text).windows
    found = scan(windows[0])
    for window in windows[1:]:
        found.add(scan(window), query)
    return json.dumps(found.to_json())
