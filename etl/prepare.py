"""Landed windows become steps for the downstream: decoded, reduced to net effects, ready to be sent.

`prepare` is a pure function of the relay's content and runs where Spark puts it. It knows no downstream and no credentials.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from etl._steps import STEP_SCHEMA, Step, to_batches
from etl._table_changes import ChangeError
from etl.ddl import TRUNCATE_TABLE, skip_reason
from etl.filters import Filter, is_internal_table
from etl.shapes import Segment, Shape, Timings, find_shape
from relay import Window, read_parts
from upstream.schema import Table

__all__ = ["STEP_SCHEMA", "ChangeError", "PrepareOptions", "describe_window", "prepare", "prepare_steps"]


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What holds for every window of a run. Travels to Spark's workers: no secrets."""

    shape: str = "net"
    """Which steps the sink takes, see `etl.shapes`."""
    filters: Filter = field(default_factory=Filter)
    ignored_ts: frozenset[int] = frozenset()
    """Commit timestamps of transactions and DDL that don't go downstream. The schema is kept up to date all the same."""


def describe_window(window: Window, after_ts: int | None = None, until_ts: int | None = None) -> dict[str, Any]:
    """What `prepare` needs of a window, as JSON values. `after_ts`: leave out what was committed through it (for a window
    that a checkpoint lies in); `until_ts`: leave out what was committed after it."""
    hi = window.hi if until_ts is None else min(window.hi, until_ts)
    later = [int(ddl["schema_version"]) for ddl in window.ddls if int(ddl["commit_ts"]) > hi]
    return {
        "lo": window.lo,
        "hi": hi,
        "after_ts": max(window.lo, after_ts or 0),
        "schema_version": min(later) - 1 if later else window.schema_version,
        "parts": [part.to_dict() for part in window.parts],
        "tables": dict(window.tables),
        "ddls": [dict(ddl) for ddl in window.ddls if int(ddl["commit_ts"]) <= hi],
        "truncated_tables": list(window.truncated_tables),
    }


def prepare(relay_url: str, windows: Sequence[Mapping[str, Any]], options: PrepareOptions) -> Iterator[pa.RecordBatch]:
    """The steps that take a downstream from the first window's `after_ts` to the last one's `hi`, in STEP_SCHEMA.

    `windows` come from `describe_window` and follow one another. Raises ChangeError, relay and row codec errors; all name
    what they are about.
    """
    yield from to_batches(prepare_steps(relay_url, windows, options))


def prepare_steps(relay_url: str, windows: Sequence[Mapping[str, Any]], options: PrepareOptions) -> Iterator[Step]:
    """The same as `prepare`, step by step."""
    ignored = options.ignored_ts.union(*(window.get("ignored_ts", ()) for window in windows))
    options = replace(options, ignored_ts=ignored)
    state = _Schemas(options.filters)
    timings = Timings()
    segment = _Collector(state, find_shape(options.shape), timings, options.ignored_ts)
    for window in windows:
        started = time.perf_counter()
        changes = read_parts(relay_url, window["parts"])
        timings.read += time.perf_counter() - started
        state.enter(window)
        done = int(window["after_ts"])
        for ddl in window["ddls"]:
            commit_ts = int(ddl["commit_ts"])
            if not state.is_barrier(ddl):
                state.apply(ddl)
                continue
            segment.add(_between(changes, done, commit_ts))
            if commit_ts > int(window["after_ts"]):
                yield from segment.flush(commit_ts - 1, int(window["schema_version"]), last=False)
                if commit_ts in options.ignored_ts:
                    segment.warn(f"ignored as asked: the DDL at commit_ts {commit_ts}: {str(ddl.get('query'))[:500]}")
                else:
                    yield Step("ddl", commit_ts, detail={**ddl, "before": state.before(ddl)})
            done = max(done, commit_ts)
            state.apply(ddl)
        segment.add(_between(changes, done, int(window["hi"])))
    if windows:
        yield from segment.flush(int(windows[-1]["hi"]), int(windows[-1]["schema_version"]), last=True)


def _between(changes: pa.Table, after: int, through: int) -> pa.Table:
    commit_ts = changes["commit_ts"].to_numpy()
    first, end = np.searchsorted(commit_ts, [after, through], side="right")
    return changes.slice(int(first), int(end - first))


class _Schemas:
    """Tables by id, as of the place in the stream that has been reached."""

    def __init__(self, filters: Filter) -> None:
        self._filters = filters
        self._tables: dict[int, Table | None] = {}
        self._truncated: set[int] = set()
        self._unwanted: set[int] = set()

    def _put(self, table_id: int, document: Mapping[str, Any] | None) -> None:
        table = self._tables[table_id] = Table.from_json(document) if document else None
        if table is not None:
            wanted = table.is_base_table and self._filters.wants_table(table.schema_name, table.name)
            (self._unwanted.discard if wanted else self._unwanted.add)(table_id)

    def enter(self, window: Mapping[str, Any]) -> None:
        for key, document in window["tables"].items():
            self._put(int(key), document)
        self._truncated.update(int(table_id) for table_id in window["truncated_tables"])

    def is_barrier(self, ddl: Mapping[str, Any]) -> bool:
        """Statements that are skipped and touch no replicated table need no barrier."""
        if skip_reason(ddl, self._filters) is None:
            return True
        tables = (ddl.get("effect") or {}).get("tables") or {}
        return any(
            self._filters.wants_schema(t["schema_name"]) if t else self._tables.get(int(i)) and int(i) not in self._unwanted
            for i, t in tables.items()
        )

    def before(self, ddl: Mapping[str, Any]) -> dict[str, Any]:
        known = ((i, self._tables.get(int(i))) for i in (ddl.get("effect") or {}).get("tables") or {})
        return {i: table.to_json() for i, table in known if table is not None}

    def apply(self, ddl: Mapping[str, Any]) -> None:
        for key, document in ((ddl.get("effect") or {}).get("tables") or {}).items():
            if document is None and ddl.get("type") == TRUNCATE_TABLE:
                self._truncated.add(int(key))
            self._put(int(key), document)

    def find(self, table_id: int, commit_ts: int) -> Table | None:
        """The table a change belongs to; None if the change is to be dropped. Raises ChangeError."""
        if is_internal_table(table_id) or table_id in self._unwanted:
            return None
        table = self._tables.get(table_id)
        if table is None:
            if table_id in self._truncated:
                return None
            raise ChangeError(
                f"commit_ts {commit_ts} changes table id {table_id}, which the relay log doesn't describe; land the window "
                "again, or name the transaction in ignore-txn-commit-ts if the table is not wanted"
            )
        return table


class _Collector:
    """Gathers the changes between two barriers, from one or more windows."""

    def __init__(self, schemas: _Schemas, shape: Shape, timings: Timings, ignored: frozenset[int]) -> None:
        self._schemas = schemas
        self._shape = shape
        self._timings = timings
        self._ignored = np.array(sorted(ignored), np.int64)
        self._pieces: list[pa.Table] = []
        self._warnings: list[str] = []

    def add(self, changes: pa.Table) -> None:
        if changes.num_rows and len(self._ignored):
            changes = self._without_ignored(changes)
        if changes.num_rows:
            self._pieces.append(changes)

    def warn(self, text: str) -> None:
        """Have the next commit step say so."""
        self._warnings.append(text)

    def _without_ignored(self, changes: pa.Table) -> pa.Table:
        commit_ts = changes["commit_ts"].to_numpy()
        ignored = np.isin(commit_ts, self._ignored)
        for ts, rows in zip(*np.unique(commit_ts[ignored], return_counts=True), strict=True):
            self.warn(f"ignored as asked: the transaction at commit_ts {ts} with {rows} row changes")
        return changes.filter(pa.array(~ignored)) if ignored.any() else changes

    def flush(self, commit_ts: int, schema_version: int, last: bool) -> Iterator[Step]:
        """The shape's steps of what was added, then a commit; without changes a commit only at the end."""
        if not self._pieces and not last:
            return
        changes = rows = 0
        if self._pieces:
            segment = self._segment()
            changes = sum(len(places) for _, places in segment.tables)
            for step in self._shape(segment, self._timings):
                rows += step.rows
                yield step
        detail = {"schema_version": schema_version if last else None, "timings_ms": self._timings.to_ms()}
        if self._warnings:
            detail["warnings"], self._warnings = self._warnings, []
        yield Step("commit", commit_ts, detail=detail, rows=rows, changes=changes)
        self._timings.clear()

    def _segment(self) -> Segment:
        started = time.perf_counter()
        table = pa.concat_tables(self._pieces).combine_chunks()
        self._pieces = []
        ids, commit_ts = table["table_id"].to_numpy(), table["commit_ts"].to_numpy()
        order = np.argsort(ids, kind="stable")
        sorted_ids = ids[order]
        starts = np.flatnonzero(np.append(True, sorted_ids[1:] != sorted_ids[:-1]))
        tables = []
        for start, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
            places = order[start:end]
            found = self._schemas.find(int(sorted_ids[start]), int(commit_ts[places[0]]))
            if found is not None:
                tables.append((found, places))
        self._timings.decode += time.perf_counter() - started
        return Segment(table, tuple(tables))
