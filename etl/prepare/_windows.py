"""Landed windows become steps for the downstream: decoded, reduced to net effects, ready to be sent.

`prepare` is a pure function of the relay's content and runs where Spark puts it. It knows no downstream and no
credentials.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from etl.prepare._late_changes import Move, kept_changes, move_of, relocate
from etl.prepare._partitions import PartitionError
from etl.rules import (
    REPLACED_BY,
    Filter,
    RouteError,
    Routes,
    Scoped,
    ScopeError,
    is_internal_table,
    scope_ddl,
    skip_reason,
)
from etl.shapes import Segment, Timings, find_shape
from etl.shapes.identity import locating_columns
from etl.shapes.kept_rows import with_kept_rows
from etl.shapes.raw_changes import RawChanges
from etl.shapes.table_changes import Circumstances, TableChanges
from etl.steps import STEP_SCHEMA, ChangeError, Step, describe_indexes, to_batches
from relay import PART_SCHEMA, Window, read_parts
from upstream.ddl_actions import REMOVES_PARTITIONS, Action
from upstream.job_versions import LONGEST_STATEMENT
from upstream.schema import Table

if TYPE_CHECKING:
    from etl.downstream import Flight

__all__ = ["STEP_SCHEMA", "ChangeError", "PrepareOptions", "describe_window", "prepare", "prepare_steps"]

_EVERYTHING = Filter()


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What holds for every window of a run. Travels to Spark's workers: no secrets."""

    shape: str = "net"
    """Which steps the sink takes, see `etl.shapes`."""
    workers: int = 1
    """How many sessions write side by side, for the shape `groups`."""
    time_zone: str = "UTC"
    """In which TIMESTAMPs are written, for the shapes `file_binlog` and `kafka_binlog`."""
    filters: Filter = field(default_factory=Filter)
    routes: Routes = field(default_factory=Routes)
    ignored_ts: frozenset[int] = frozenset()
    """Commit timestamps of transactions and DDL that don't go downstream. The schema is kept up to date all the same.
    """


def describe_window(
    window: Window,
    after_ts: int | None = None,
    until_ts: int | None = None,
    safe: bool = False,
    flight: Flight | None = None,
    behind: Mapping[int, Sequence[Window]] | None = None,
) -> dict[str, Any]:
    """What `prepare` needs of a window, as JSON values. `after_ts`: leave out what was committed through it (for a
    window that a checkpoint lies in); `until_ts`: leave out what was committed after it. `safe`: safe mode, for this
    window and those prepared with it. `flight`: which may have written some of it already. `behind`: for DDL inside
    that drops partitions, by commit_ts, the windows before this one since it began, see `began_before`.
    """
    hi = window.hi if until_ts is None else min(window.hi, until_ts)
    later = [int(ddl["schema_version"]) for ddl in window.ddls if int(ddl["commit_ts"]) > hi]
    return {
        "lo": window.lo,
        "hi": hi,
        "after_ts": max(window.lo, after_ts or 0),
        "safe": safe,
        "schema_version": min(later) - 1 if later else window.schema_version,
        "parts": [part.to_dict() for part in window.parts],
        "tables": dict(window.tables),
        "ddls": [dict(ddl) for ddl in window.ddls if int(ddl["commit_ts"]) <= hi],
        "truncated_tables": list(window.truncated_tables),
        "moved": [dict(move) for move in window.moved],
        "relaxed": dict(window.relaxed),
        "behind": {
            str(ts): [[part.to_dict() for part in before.parts] for before in windows]
            for ts, windows in (behind or {}).items()
        },
        "flight": {"until": flight.until, "left_out": list(flight.left_out)} if flight else None,
    }


def began_before(window: Window, after_ts: int) -> dict[int, int]:
    """DDL inside and behind `after_ts` whose first rows may lie in windows before, by commit_ts: the timestamps (TSO)
    behind which these lie.
    """
    return {
        int(ddl["commit_ts"]): int(ddl["began_ts"])
        for ddl in window.ddls
        if len(ddl.get("versions") or ()) > 1
        and int(ddl["commit_ts"]) > after_ts
        and int(ddl["type"]) in REMOVES_PARTITIONS
        and int(ddl["began_ts"]) < window.lo
    }


def counting_from(window: Window, after_ts: int) -> dict[int, int]:
    """DDL before the window of which changes behind it depend on what came between, by job: the timestamps (TSO) behind
    which they lie.
    """
    return {
        int(ddl["job_id"]): int(ddl["began_ts"])
        for ddl in window.moved
        if int(ddl["type"]) in REMOVES_PARTITIONS and int(ddl.get("finished_ts") or 0) + LONGEST_STATEMENT > after_ts
    }


def prepare(relay_url: str, windows: Sequence[Mapping[str, Any]], options: PrepareOptions) -> Iterator[pa.RecordBatch]:
    """The steps that take a downstream from the first window's `after_ts` to the last one's `hi`, in STEP_SCHEMA.

    `windows` come from `describe_window` and follow one another. Raises ChangeError, relay and row codec errors; all
    name what they are about.

    A window may have three keys more: `ignored_ts`, see PrepareOptions; `rows`, how many of its changes count, from the
    first on; and in a DDL what `etl.rules.decided` puts there.
    """
    yield from to_batches(prepare_steps(relay_url, windows, options))


def prepare_steps(relay_url: str, windows: Sequence[Mapping[str, Any]], options: PrepareOptions) -> Iterator[Step]:
    """The same as `prepare`, step by step."""
    ignored = options.ignored_ts.union(*(window.get("ignored_ts", ()) for window in windows))
    options = replace(options, ignored_ts=ignored)
    state = _Schemas(options)
    timings = Timings()
    safe = any(window.get("safe") for window in windows)
    replayed = bool(windows and windows[0].get("flight"))
    segment = _Collector(
        state,
        options,
        timings,
        int(windows[0]["after_ts"]) if windows else 0,
        safe,
        replayed,
        _written_of(ignored, windows),
    )
    for window in windows:
        started = time.perf_counter()
        changes = read_parts(relay_url, window["parts"]).slice(0, window.get("rows"))
        timings.read += time.perf_counter() - started
        done = int(window["after_ts"])
        if (
            window.get("relaxed") and segment.loads_rows
        ):  # what came before is told apart by the keys that hold there still
            yield from segment.flush(done, int(window["schema_version"]), last=False, barrier=0)
        state.enter(window)
        for counted in window.get("counted_before", ()):
            state.count(
                int(counted["job_id"]),
                _between(read_parts(relay_url, counted["parts"]), int(counted["after_ts"]), done),
            )
        if segment.loads_rows:
            yield from state.relaxed_steps(done)
        for ddl in window["ddls"]:
            commit_ts = int(ddl["commit_ts"])
            try:
                scoped = state.scope(
                    ddl, ignored=commit_ts in options.ignored_ts or commit_ts <= int(window["after_ts"])
                )
            except ScopeError:
                segment.add(state.relocated(_between(changes, done, commit_ts)))
                yield from segment.flush(commit_ts - 1, int(window["schema_version"]), last=False)
                raise
            if scoped is None:
                state.apply(ddl)
                continue
            segment.add(state.relocated(_between(changes, done, commit_ts)))
            move = None
            if commit_ts > int(window["after_ts"]):
                yield from segment.flush(commit_ts - 1, int(window["schema_version"]), last=False)
            move = state.apply(ddl)
            if commit_ts <= int(window["after_ts"]):
                state.count(int(ddl.get("job_id") or 0), _between(changes, commit_ts, int(window["after_ts"])))
            else:
                if commit_ts in options.ignored_ts:
                    segment.warn(f"ignored as asked: the DDL at commit_ts {commit_ts}: {str(ddl.get('query'))[:500]}")
                elif scoped.ddl is not None:
                    step = Step("ddl", commit_ts, detail=scoped.ddl)
                    if move is not None and move.drops and move.version < move.last_version and REPLACED_BY not in ddl:
                        before = (
                            read_parts(relay_url, parts) for parts in window.get("behind", {}).get(str(commit_ts), ())
                        )
                        step = segment.bring_along(
                            step, move, itertools.chain(before, (_between(changes, 0, commit_ts),))
                        )
                    yield step
                    if segment.loads_rows:
                        yield from state.relaxed_steps(
                            commit_ts, ((ddl.get("effect") or {}).get("tables") or {}).keys()
                        )
                for warning in scoped.warnings:
                    segment.warn(warning)
            done = max(done, commit_ts)
        segment.add(state.relocated(_between(changes, done, int(window["hi"]))))
    changes = None  # what the collector has taken is enough
    if windows:
        yield from segment.flush(int(windows[-1]["hi"]), int(windows[-1]["schema_version"]), last=True)


def _written_of(ignored: frozenset[int], windows: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Which of these transactions a flight that was broken off may have written, as they weren't ignored then."""
    flight = windows[0].get("flight") if windows else None
    return (
        frozenset(ts for ts in ignored if ts <= flight["until"]) - frozenset(flight["left_out"])
        if flight
        else frozenset()
    )


def _between(changes: pa.Table, after: int, through: int) -> pa.Table:
    commit_ts = changes["commit_ts"].to_numpy()
    first, end = np.searchsorted(commit_ts, [after, through], side="right")
    return changes.slice(int(first), int(end - first))


class _Schemas:
    """Tables by id, as of the place in the stream that has been reached."""

    def __init__(self, options: PrepareOptions) -> None:
        self._filters, self._routes = options.filters, options.routes
        self._tables: dict[int, Table] = {}
        self._routed: dict[int, tuple[Table, str]] = {}
        self._truncated: set[int] = set()
        self._unwanted: set[int] = set()
        self._moves: dict[int, Move] = {}
        self._relaxed: dict[int, frozenset[int]] = {}
        self.dropping: set[int] = set()
        """Tables whose keys may have values twice in this window: once in a partition that is about to be dropped."""

    def _put(self, table_id: int, document: Mapping[str, Any] | None) -> None:
        self._routed.pop(table_id, None)
        if not document:
            self._tables.pop(table_id, None)
            return
        table = self._tables[table_id] = Table.from_json(document)
        wanted = table.is_base_table and self._filters.wants_table(table.schema_name, table.name)
        (self._unwanted.discard if wanted else self._unwanted.add)(table_id)

    def enter(self, window: Mapping[str, Any]) -> None:
        for key, document in window["tables"].items():
            self._put(int(key), document)
        self._truncated.update(int(table_id) for table_id in window["truncated_tables"])
        for document in window.get("moved", ()):
            self._note(move_of(document, {int(i): Table.from_json(t) for i, t in document["before"].items()}))
        self.dropping = {int(key) for key, indexes in window.get("relaxed", {}).items() if not indexes}
        for key, indexes in window.get("relaxed", {}).items():
            table_id = int(key)
            self._relaxed[table_id] = self._relaxed.get(table_id, frozenset()).union(
                indexes
            )  # ids are never used again
            self._routed.pop(table_id, None)

    def _note(self, move: Move | None) -> Move | None:
        if move is not None and move.last_version not in self._moves:
            self._moves[move.last_version] = move
        return move

    def count(self, job_id: int, changes: pa.Table) -> None:
        """Changes before those to be applied, and behind a DDL."""
        relocate(changes, [move for move in self._moves.values() if move.job_id == job_id])

    def relocated(self, changes: pa.Table) -> pa.Table:
        """Changes that follow the DDL so far, as what they mean by now: some may have been made by a definition before.
        Raises ChangeError.
        """
        if not self._moves:
            return changes
        moves = [self._moves[version] for version in sorted(self._moves)]
        try:
            return relocate(changes, [move for move in moves if move.table.id not in self._unwanted])
        except PartitionError as error:
            raise ChangeError(str(error)) from error

    def relaxed_steps(self, commit_ts: int, changed: Iterable[str] | None = None) -> Iterator[Step]:
        """For each table that gives up unique keys in this window, of those `changed` (ids as text), a relax step."""
        for table_id in self._relaxed.keys() if changed is None else self._relaxed.keys() & {int(i) for i in changed}:
            found = self.find(table_id, commit_ts) if table_id in self._tables else None
            if found is not None and not found[1]:
                indexes = describe_indexes(self._tables[table_id], self._relaxed[table_id])
                if indexes:
                    yield Step("relax", commit_ts, found[0].schema_name, found[0].name, {"indexes": indexes})

    def scope(self, ddl: Mapping[str, Any], ignored: bool) -> Scoped | None:
        """What of a DDL goes downstream; None if nothing does and no replicated table is touched, so that it is no
        barrier. `ignored`: it won't be executed, so nothing about it can be wrong. Raises ScopeError.
        """
        if ignored:
            return Scoped(None, True)
        if REPLACED_BY in ddl:  # the operator knows better than filters and routes
            return Scoped({**ddl, "before": {}}, True)
        ids = ((ddl.get("effect") or {}).get("tables") or {}).keys()
        before = {int(i): self._tables[int(i)] for i in ids if int(i) in self._tables}
        scoped = scope_ddl(ddl, before, self._filters, self._routes)
        runs = scoped.ddl is not None and skip_reason(ddl, _EVERYTHING) is None
        return scoped if runs or scoped.touches else None

    def apply(self, ddl: Mapping[str, Any]) -> Move | None:
        """Go on behind a DDL; what it moves, if it moves rows."""
        documents = (ddl.get("effect") or {}).get("tables") or {}
        move = self._note(move_of(ddl, {int(i): self._tables[int(i)] for i in documents if int(i) in self._tables}))
        for key, document in documents.items():
            if document is None and ddl.get("type") == Action.TRUNCATE_TABLE:
                self._truncated.add(int(key))
            self._put(int(key), document)
        return move

    def find(self, table_id: int, commit_ts: int) -> tuple[Table, str] | None:
        """The table a change belongs to, under the name it has downstream, and, if its rows are merged with those of
        others there, its own name; None if the change is to be dropped. Raises ChangeError.
        """
        if is_internal_table(table_id) or table_id in self._unwanted:
            return None
        found = self._routed.get(table_id)
        if found is not None:
            return found
        table = self._tables.get(table_id)
        if table is None:
            if table_id in self._truncated:
                return None
            raise ChangeError(
                f"commit_ts {commit_ts} changes table id {table_id}, which the relay log doesn't describe; land the"
                f" window again, or leave the transaction out: `sluice txn skip {commit_ts}`"
            )
        try:
            target = self._routes.target(table.schema_name, table.name)
        except RouteError as error:
            raise ChangeError(f"row changes at commit_ts {commit_ts}: {error}") from None
        routed = table if target.route is None else replace(table, schema_name=target.schema, name=target.table)
        given_up = self._relaxed.get(table_id)
        if given_up:
            routed = replace(routed, indexes=tuple(index for index in routed.indexes if index.id not in given_up))
        self._routed[table_id] = routed, table.full_name if target.is_merged else ""
        return self._routed[table_id]

    def ignored_kinds(self, table_id: int) -> frozenset[int]:
        """Kinds of a table's row changes that are left out."""
        table = self._tables[table_id]
        return self._filters.ignored_row_kinds(table.schema_name, table.name)

    def may_keep_rows(self, table_id: int) -> bool:
        """Whether a table's rows may stay downstream when a statement removes them upstream."""
        table = self._tables[table_id]
        return self._filters.may_keep_rows(table.schema_name, table.name)


class _Collector:
    """Gathers the changes between two barriers, from one or more windows."""

    def __init__(
        self,
        schemas: _Schemas,
        options: PrepareOptions,
        timings: Timings,
        after_ts: int,
        safe: bool,
        replayed: bool,
        written: frozenset[int],
    ) -> None:
        """`replayed`: a flight that was broken off. `written`: those of the ignored transactions that may be downstream
        in part, to be taken back.
        """
        self._schemas = schemas
        # In safe mode, and for a flight that is written again, one session does it all, whatever the sink has.
        self._shape = find_shape("net" if safe or replayed else options.shape)
        self._safe = safe
        self._replayed = replayed
        self._workers = options.workers
        self._time_zone = options.time_zone
        self._timings = timings
        self._after_ts = after_ts
        self._ignored = np.array(sorted(options.ignored_ts), np.int64)
        self._written = np.array(sorted(written), np.int64)
        self._pieces: list[pa.Table] = []
        self._loose: set[int] = set()
        self._taken_back: list[pa.Table] = []
        self._left_out: list[int] = []
        self._warnings: list[str] = []

    def add(self, changes: pa.Table) -> None:
        if changes.num_rows and len(self._ignored):
            changes = self._without_ignored(changes)
        if changes.num_rows:
            self._pieces.append(changes)
            self._loose |= self._schemas.dropping

    def warn(self, text: str) -> None:
        """Have the next commit step say so."""
        self._warnings.append(text)

    def _without_ignored(self, changes: pa.Table) -> pa.Table:
        commit_ts = changes["commit_ts"].to_numpy()
        ignored = np.isin(commit_ts, self._ignored)
        for ts, rows in zip(*np.unique(commit_ts[ignored], return_counts=True), strict=True):
            self.warn(f"ignored as asked: the transaction at commit_ts {ts} with {rows} row changes")
            self._left_out.append(int(ts))
        written = np.isin(commit_ts, self._written)
        if written.any():
            self._taken_back.append(changes.filter(pa.array(written)))
        return changes.filter(pa.array(~ignored)) if ignored.any() else changes

    @property
    def loads_rows(self) -> bool:
        """Whether the sink writes rows into tables; others are told what happened."""
        return self._shape in (find_shape("net"), find_shape("groups"))

    def bring_along(self, ddl: Step, move: Move, changes: Iterable[pa.Table]) -> Step:
        """The step of a DDL that drops partitions, with the rows that stay; `changes`: what came before
        it, in order.
        """
        try:
            kept = kept_changes(changes, move).combine_chunks()
        except PartitionError as error:
            raise ChangeError(
                f"DDL at commit_ts {ddl.commit_ts}: {error}. Way out: `sluice ddl replace {ddl.commit_ts}`"
            ) from error
        found = self._schemas.find(move.table.id, ddl.commit_ts)
        kept = kept.filter(pa.array(~np.isin(kept["commit_ts"].to_numpy(), self._ignored)))
        if not kept.num_rows or found is None:
            return ddl
        if not self.loads_rows:
            self.warn(
                f"{move.table.full_name}: {kept.num_rows} changes before the DDL at commit_ts {ddl.commit_ts} are about"
                " rows that its upstream kept, in another partition; who executes its statement drops them"
            )
            return ddl
        circumstances = Circumstances(partial=True, source=found[1])
        changes_kept = TableChanges(found[0], RawChanges.of(kept), self._timings, circumstances)
        return with_kept_rows(ddl, changes_kept.loads())

    def flush(self, commit_ts: int, schema_version: int, last: bool, barrier: int = 1) -> Iterator[Step]:
        """The shape's steps of what was added, then a commit; without changes a commit only at the end. `barrier`: how
        far behind it the next segment begins.
        """
        after_ts, self._after_ts = self._after_ts, commit_ts + barrier
        if not self._pieces and not self._taken_back and not last:
            return
        changes = rows = 0
        if self._pieces or self._taken_back:
            segment = self._segment(after_ts, commit_ts)
            changes = sum(len(places) for _, places in segment.tables)
            for step in self._shape(segment, self._timings, self._workers):
                rows += step.rows
                yield step
        detail: dict[str, Any] = {
            "schema_version": schema_version if last else None,
            "timings_ms": self._timings.to_ms(),
        }
        if self._warnings:
            detail["warnings"], self._warnings = self._warnings, []
        yield Step("commit", commit_ts, detail=detail, rows=rows, changes=changes)
        self._timings.clear()

    def _segment(self, after: int, through: int) -> Segment:
        started = time.perf_counter()
        table = pa.concat_tables(self._pieces or [PART_SCHEMA.empty_table()]).combine_chunks()
        self._pieces = []
        taken_back = self._by_table_taken_back()
        ids, commit_ts = table["table_id"].to_numpy(), table["commit_ts"].to_numpy()
        order = np.argsort(ids, kind="stable")
        sorted_ids = ids[order]
        edges = np.append(np.flatnonzero(np.append(True, sorted_ids[1:] != sorted_ids[:-1])[: len(order)]), len(order))
        tables = []
        loose, self._loose = self._loose, set()
        partial: set[int] = set()
        sources: dict[int, str] = {}
        for start, end in itertools.pairwise(edges):
            places = order[start:end]
            found = self._schemas.find(int(sorted_ids[start]), int(commit_ts[places[0]]))
            if found is None:
                continue
            ignored_kinds = self._schemas.ignored_kinds(found[0].id)
            gives_way = found[0].id in loose and bool(locating_columns(found[0]))
            if ignored_kinds or gives_way or self._schemas.may_keep_rows(found[0].id):
                partial.add(found[0].id)
            if ignored_kinds:
                places = places[~np.isin(table["kind"].to_numpy()[places], list(ignored_kinds))]
            if found[1]:
                sources[found[0].id] = found[1]
            if len(places) or found[0].id in taken_back:
                tables.append((found[0], places))
        known = {found.id for found, _ in tables}
        tables += [(self._schemas.find(i, through)[0], np.zeros(0, np.int64)) for i in taken_back if i not in known]  # type: ignore[index]
        left_out, self._left_out = tuple(self._left_out), []
        self._timings.decode += time.perf_counter() - started
        return Segment(
            table,
            tuple(tables),
            after,
            through,
            self._safe,
            self._time_zone,
            frozenset(partial),
            sources,
            left_out,
            self._replayed,
            taken_back,
        )

    def _by_table_taken_back(self) -> dict[int, pa.Table]:
        """What is to be taken back. Of some tables it was in one transaction with the checkpoint, see
        `etl.shapes.groups`, so it was never written.
        """
        pieces, self._taken_back = self._taken_back, []
        if not pieces:
            return {}
        changes = pa.concat_tables(pieces)
        ids = changes["table_id"].to_numpy()
        found = {}
        for table_id in np.unique(ids).tolist():
            own = changes.filter(pa.array(ids == table_id))
            table = self._schemas.find(table_id, int(own["commit_ts"][0].as_py()))
            if (
                table is not None
                and not table[1]
                and locating_columns(table[0])
                and not self._schemas.ignored_kinds(table_id)
            ):
                found[table_id] = own
        return found
