"""Turn landed windows into steps for the downstream: decoded, reduced to net effects.

`prepare` is a pure function of the relay's content and runs where Spark puts it. It knows no
downstream and no credentials.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from sluice.etl.changes.channels import Channels
from sluice.etl.changes.planning._change_set_builder import ChangeSetBuilder
from sluice.etl.changes.planning._lost_changes import without_lost
from sluice.etl.changes.planning._marked_transactions import find_marked
from sluice.etl.changes.planning._origin_runs import origin_runs
from sluice.etl.changes.planning._partition_moves import PartitionMove
from sluice.etl.changes.planning._payloads import BatchPayload, PrepareOptions
from sluice.etl.changes.planning._schema_cursor import SchemaCursor
from sluice.etl.changes.planning._window_marks import WindowMarks
from sluice.etl.changes.rules import ScopeError, ScopeResult
from sluice.etl.changes.steps import ScopedDdl, Step, to_batches
from sluice.etl.changes.write_plans import StageTimings
from sluice.relay import is_named, read_parts
from sluice.tidb.ddl_job import DdlJob


def prepare(
    relay_url: str, batch: BatchPayload, options: PrepareOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the steps that take a downstream from the first window's `after_ts` to the last's `hi`.

    They are in STEP_SCHEMA. Raises ChangeError, relay and row codec errors; all name what they are
    about.
    """
    yield from to_batches(prepare_steps(relay_url, batch, options))


def prepare_steps(relay_url: str, batch: BatchPayload, options: PrepareOptions) -> Iterator[Step]:
    """Yield the same as `prepare`, step by step."""
    if batch.windows:
        options = replace(options, ignored_ts=options.ignored_ts | batch.skipped)
        yield from _WindowPreparation(relay_url, batch, options).steps()


class _WindowPreparation:
    def __init__(self, relay_url: str, batch: BatchPayload, options: PrepareOptions) -> None:
        self._relay_url = relay_url
        self._batch = batch
        self._ignored = options.ignored_ts
        self._channels = options.channels
        self._marks: WindowMarks | None = None
        """What the marks in the present window show; None where none are looked for."""
        self._timings = StageTimings()
        self._schemas = SchemaCursor(options)
        self._builder = ChangeSetBuilder(self._schemas, options, batch, self._timings)
        self._done = 0
        """The commit_ts through which changes of the window have been added."""

    def steps(self) -> Iterator[Step]:
        for number in range(len(self._batch.windows)):
            yield from self._window(number)
        last = self._batch.windows[-1]
        yield from self._builder.finish(last.hi, last.schema.schema_version)

    def _window(self, number: int) -> Iterator[Step]:
        window = self._batch.windows[number]
        begun = self._batch.begun if number == 0 else None
        whole = begun if begun is not None and not begun.channels else None
        self._done = max(window.after_ts, whole.ts if whole is not None else 0)
        changes = self._read(number)
        if window.schema.relaxed and self._builder.loads_rows:
            # The changes before this window rely on the keys that are still enforced there.
            yield from self._builder.flush(window.after_ts, barrier=0)
        elif self._schemas.masks_differ(window.schema):
            yield from self._builder.flush(window.after_ts, barrier=0)
        self._schemas.enter_window(window.schema)
        for counted in self._batch.counted_before if number == 0 else ():
            before = _changes_between(
                read_parts(self._relay_url, counted.parts), counted.after_ts, self._done
            )
            self._schemas.count(counted.job_id, before)
        if self._builder.loads_rows:
            yield from self._schemas.relaxed_steps(window.after_ts)
        ddls = window.schema.ddls
        for ddl, following in itertools.zip_longest(ddls, ddls[1:]):
            if ddl.commit_ts <= window.after_ts:
                self._schemas.apply_ddl(ddl)
                self._schemas.count(
                    ddl.job_id, _changes_between(changes, ddl.commit_ts, window.after_ts)
                )
            elif begun is not None and ddl.commit_ts == begun.ts and ddl.job_id in begun.jobs:
                self._schemas.apply_ddl(ddl)
            else:
                has_companions = following is not None and following.commit_ts == ddl.commit_ts
                yield from self._apply_ddl(ddl, changes, has_companions=has_companions)
        yield from self._add(changes, window.hi)

    def _read(self, number: int) -> pa.Table:
        started = time.perf_counter()
        changes = read_parts(self._relay_url, self._batch.windows[number].parts)
        self._timings.read += time.perf_counter() - started
        is_last = number == len(self._batch.windows) - 1
        rows = self._batch.rows if is_last else None
        if self._channels is not None:
            return self._without_marked(number, changes, self._channels, rows)
        return changes.slice(0, rows)

    def _without_marked(
        self, number: int, changes: pa.Table, channels: Channels, rows: int | None
    ) -> pa.Table:
        """Return the first `rows` of a window's changes without those that came from downstream.

        Nor those that were committed with others and are downstream already.
        """
        marked = find_marked(changes, self._batch.windows[number].schema, channels)
        changes = changes.slice(0, rows)
        self._marks = WindowMarks(changes, marked, channels, self._done)
        return self._marks.kept(changes, self._batch.begun if number == 0 else None)

    def _add(self, changes: pa.Table, through: int) -> Iterator[Step]:
        """Add changes; yield the steps of those before them that came from another origin."""
        if through <= self._done:
            return
        added = _changes_between(changes, self._done, through)
        if self._marks is None:
            self._add_these(added)
        else:
            yield from self._add_by_origin(added, self._marks, through)
        self._done = through

    def _add_by_origin(self, added: pa.Table, marks: WindowMarks, through: int) -> Iterator[Step]:
        if not marks.is_ring:
            self._builder.count_returned(marks.count_returned(through))
            self._add_these(added)
            return
        added = self._schemas.without_unwanted(added)
        commit_ts = added["commit_ts"].to_numpy()
        runs = origin_runs(commit_ts, marks.channels_of(added))
        for run in runs:
            before = int(commit_ts[run.places[0]]) - 1
            self._builder.count_returned(marks.count_returned(before))
            yield from self._builder.enter_origin(run.channel, before)
            self._add_these(added.take(pa.array(run.places)) if len(runs) > 1 else added)
            if run.divides:
                yield from self._builder.flush_part(run.divides)
        self._builder.count_returned(marks.count_returned(through))

    def _add_these(self, added: pa.Table) -> None:
        added = self._schemas.relocate(added)
        if self._batch.lost:
            added = without_lost(added, self._batch.lost, self._schemas.table)
        self._builder.add(added)

    def _apply_ddl(self, ddl: DdlJob, changes: pa.Table, *, has_companions: bool) -> Iterator[Step]:
        """Yield the steps before a DDL, and that of the DDL if it is a barrier.

        Rows that were committed at its own commit_ts come before it. `has_companions`: the next DDL
        was committed then, too.
        """
        try:
            scoped = self._scope(ddl)
        except ScopeError:
            yield from self._flush_before(ddl, changes)
            raise
        if scoped is None:
            self._schemas.apply_ddl(ddl)
            return
        yield from self._flush_before(ddl, changes)
        move = self._schemas.apply_ddl(ddl)
        if is_named(self._ignored, ddl.commit_ts, ddl.start_ts):
            self._builder.warn(
                f"ignored as asked: the DDL at commit_ts {ddl.commit_ts}:"
                f" {self._schemas.shown_statement(ddl)[:500]}"
            )
        elif scoped.ddl is not None:
            shared = (
                replace(scoped.ddl, has_companions=has_companions) if has_companions else scoped.ddl
            )
            yield self._with_surviving_rows(shared, move, changes)
            if self._builder.loads_rows:
                yield from self._schemas.relaxed_steps(ddl.commit_ts, ddl.effect.tables)
        for warning in scoped.warnings:
            self._builder.warn(warning)

    def _flush_before(self, ddl: DdlJob, changes: pa.Table) -> Iterator[Step]:
        yield from self._add(changes, ddl.commit_ts - 1)
        yield from self._builder.flush(ddl.commit_ts - 1)
        yield from self._add(changes, ddl.commit_ts)
        yield from self._builder.flush_shared(ddl.commit_ts)

    def _scope(self, ddl: DdlJob) -> ScopeResult | None:
        """Return the part of a DDL that is a barrier and is executed; see `SchemaCursor.scope`."""
        if is_named(self._ignored, ddl.commit_ts, ddl.start_ts):  # nothing about it can be wrong
            return ScopeResult(None, touches=True)
        replaced = self._batch.replaced
        replaced_by = replaced.get(ddl.commit_ts, replaced.get(-ddl.start_ts))
        if replaced_by is not None:  # an operator's statements override filters and routes
            return ScopeResult(ScopedDdl.from_job(ddl, replaced_by=replaced_by), touches=True)
        return self._schemas.scope(ddl)

    def _with_surviving_rows(
        self, ddl: ScopedDdl, move: PartitionMove | None, changes: pa.Table
    ) -> Step:
        step = Step(ddl, ddl.commit_ts)
        if (
            move is None
            or not move.drops
            or move.version >= move.last_version
            or ddl.replaced_by is not None
        ):
            return step
        behind = (
            read_parts(self._relay_url, parts)
            for parts in self._batch.behind.get(ddl.commit_ts, ())
        )
        return self._builder.attach_surviving_rows(
            step, move, itertools.chain(behind, (_changes_between(changes, 0, ddl.commit_ts),))
        )


def _changes_between(changes: pa.Table, after: int, through: int) -> pa.Table:
    commit_ts = changes["commit_ts"].to_numpy()
    first, end = np.searchsorted(commit_ts, [after, through], side="right")
    return changes.slice(int(first), int(end - first))
