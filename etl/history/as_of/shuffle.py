"""Distribute a snapshot's rows and windows' changes to buckets: a worker's part of one task."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.planning import (
    PartitionError,
    PartitionMove,
    move_of,
    relocate,
    surviving_changes,
)
from sluice.etl.changes.write_plans.raw_changes import decode
from sluice.etl.copy.source import SourceChunk
from sluice.etl.copy.sources import open_source
from sluice.etl.history.as_of.advance import COMMIT_TS_COLUMN, PLACE_COLUMN, schema
from sluice.etl.history.as_of.read_tasks import (
    PIECES,
    SNAPSHOT_STEP,
    GroupBuckets,
    PartitionSurvivors,
    ReadTask,
    SavedRows,
    SnapshotRows,
    TimeTravelPlan,
    WindowChanges,
    WindowParts,
    step_of,
)
from sluice.etl.history.as_of.result_files import read_stream
from sluice.etl.history.as_of.versions import TableVersion
from sluice.etl.history.errors import AsOfError
from sluice.relay import DELETE, INSERT, PART_SCHEMA, iter_parts

_MAX_BATCH_ROWS, _MAX_BATCH_BYTES = 100_000, 32 << 20
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class TaskRows(NamedTuple):
    """Rows that a task read for one step of a group: a snapshot's, or images in order."""

    buckets: GroupBuckets
    version: TableVersion
    step: int
    rows: pa.Table


def shuffle_pieces(plan: TimeTravelPlan, number: int) -> Iterator[pa.RecordBatch]:
    """Yield those of a task, in PIECES.

    Raises AsOfError, relay errors, the row codec's and the snapshot's.
    """
    numbers = itertools.count()
    for found in task_rows(plan, number):
        for bucket, rows in _partitioned(found):
            yield _piece((bucket, found.step, found.version.table.id, number, next(numbers)), rows)


def task_rows(plan: TimeTravelPlan, number: int) -> Iterator[TaskRows]:
    """Yield what a task reads, in order. Raises what `shuffle_pieces` does."""
    task: ReadTask = plan.tasks[number]
    if isinstance(task, SnapshotRows):
        yield from _snapshot_rows(plan, task)
    elif isinstance(task, SavedRows):
        buckets, version = _first_version(plan, task.table_id)
        for batch in read_stream(task.url, task.path, task.about):
            rows = pa.Table.from_batches([batch])
            yield TaskRows(buckets, version, SNAPSHOT_STEP, rows)
    elif isinstance(task, PartitionSurvivors):
        yield from _TaskChanges(plan).from_survivors(task)
    else:
        yield from _TaskChanges(plan).from_changes(task)


def _first_version(plan: TimeTravelPlan, table_id: int) -> tuple[GroupBuckets, TableVersion]:
    buckets = plan.by_table[table_id]
    return buckets, buckets.family.versions[0][table_id]


def _snapshot_rows(plan: TimeTravelPlan, task: SnapshotRows) -> Iterator[TaskRows]:
    buckets, version = _first_version(plan, task.table_id)
    assert plan.snapshot is not None
    source = open_source(plan.snapshot)
    types = schema(version.columns)
    for batch in source.read(SourceChunk.from_json(dict(task.chunk)), version.table):
        arrays = [batch.column(field.name).cast(field.type) for field in types]
        rows = pa.Table.from_arrays(arrays, schema=types)
        yield TaskRows(buckets, version, SNAPSHOT_STEP, rows)


def _partitioned(found: TaskRows) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows by bucket."""
    rows, of = found.rows, found.buckets.of(found.version, found.rows)
    order = np.argsort(of, kind="stable")
    dealt = of[order]
    begins = np.flatnonzero(np.append(True, dealt[1:] != dealt[:-1])[: len(dealt)])
    rows = rows.take(pa.array(order)) if len(begins) > 1 else rows
    for begin, end in itertools.pairwise([*begins.tolist(), len(order)]):
        yield int(dealt[begin]), rows.slice(begin, end - begin)


def _piece(place: tuple[int, ...], rows: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows.combine_chunks())
    values = [*place, sink.getvalue().to_pybytes()]
    return pa.RecordBatch.from_arrays(
        [pa.array([v], f.type) for v, f in zip(values, PIECES, strict=True)], schema=PIECES
    )


class _TaskChanges:
    def __init__(self, plan: TimeTravelPlan) -> None:
        self._plan = plan
        self._ids = np.array(sorted(plan.by_table), np.int64)
        self._ignored = pa.array(sorted(plan.ignored), pa.int64())
        self._moves: dict[int, PartitionMove] = {}
        self._upcoming = sorted(_moves(plan), key=lambda pair: pair[0])
        """The moves of DDL, by its commit_ts, as far as they aren't among `_moves` yet."""

    def from_survivors(self, task: PartitionSurvivors) -> Iterator[TaskRows]:
        buckets, ddl = next(
            (one, one.family.ddls[task.commit_ts])
            for one in self._plan.families
            if task.commit_ts in one.family.ddls
        )
        move = move_of(ddl.past_move(ddl.before))
        assert move is not None
        stretch = buckets.family.breaks.index(task.commit_ts)
        changes = (
            _changes_between(piece, 0, task.commit_ts)
            for window in task.windows
            for piece in self._read((window,))
        )
        try:
            kept = surviving_changes(changes, move)
        except PartitionError as error:
            raise AsOfError(f"{ddl.title}, `{ddl.query[:200]}`: {error}") from error
        version = buckets.family.versions[stretch + 1].get(move.table.id)
        if version is not None and kept.num_rows:
            yield TaskRows(buckets, version, step_of(stretch) + 1, _images(version, kept))

    def from_changes(self, task: WindowChanges) -> Iterator[TaskRows]:
        self._count(task)
        for window in task.windows:
            self._note(window)
            for changes in self._read((window,)):
                yield from self._from_window(
                    _changes_between(changes, task.after_ts, task.until_ts)
                )

    def _count(self, task: WindowChanges) -> None:
        """Read the changes before those, behind DDL that emptied partitions."""
        for window in task.windows[:1]:
            self._note(window)
        for job_id, after_ts, windows in task.counted:
            moves = [move for move in self._moves.values() if move.job_id == job_id]
            for window in windows:
                for changes in self._read((window,)):
                    relocate(_changes_between(changes, after_ts, task.after_ts), moves)

    def _note(self, window: WindowParts) -> None:
        for past in window.moved:
            move = move_of(past)
            if move is not None:
                self._moves.setdefault(move.last_version, move)

    def _from_window(self, changes: pa.Table) -> Iterator[TaskRows]:
        """Yield changes in order, cut where DDL moves rows.

        Those behind may have been made by definitions before it.
        """
        while self._upcoming and changes.num_rows:
            at, move = self._upcoming[0]
            before = _changes_between(changes, 0, at)
            yield from self._from_tables(self._relocated(before))
            changes = changes.slice(before.num_rows)
            if changes.num_rows:
                self._moves.setdefault(move.last_version, move)
                del self._upcoming[0]
        yield from self._from_tables(self._relocated(changes))

    def _relocated(self, changes: pa.Table) -> pa.Table:
        """Return changes with their meaning by the definitions of their time."""
        if not self._moves or not changes.num_rows:
            return changes
        try:
            return relocate(changes, [self._moves[version] for version in sorted(self._moves)])
        except PartitionError as error:
            raise AsOfError(str(error)) from error

    def _from_tables(self, changes: pa.Table) -> Iterator[TaskRows]:
        ids = changes["table_id"].to_numpy()
        for table_id in np.intersect1d(np.unique(ids), self._ids).tolist():
            buckets = self._plan.by_table[table_id]
            own = changes.filter(pa.array(ids == table_id))
            own = _changes_between(own, 0, buckets.family.until[table_id])
            breaks = np.array(buckets.family.breaks, np.int64)
            stretches = np.searchsorted(breaks, own["commit_ts"].to_numpy(), side="left")
            for stretch in np.unique(stretches).tolist():
                first, end = np.searchsorted(stretches, [stretch, stretch + 1])
                version = buckets.family.versions[stretch].get(table_id)
                if version is not None:  # else the table is gone
                    images = _images(version, own.slice(first, end - first))
                    yield TaskRows(buckets, version, step_of(stretch), images)

    def _read(self, windows: Sequence[WindowParts]) -> Iterator[pa.Table]:
        """Yield the changes of wanted tables, in order, in portions."""
        ids = pa.array(self._ids)
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in iter_parts(
            self._plan.log_url, [part for window in windows for part in window.parts]
        ):
            wanted = batch.filter(pc.is_in(batch["table_id"], ids))
            if len(self._ignored):
                is_ignored = pc.or_(
                    pc.is_in(wanted["commit_ts"], self._ignored),
                    pc.is_in(pc.negate(wanted["start_ts"]), self._ignored),
                )
                wanted = wanted.filter(pc.invert(is_ignored))
            if not wanted.num_rows:
                continue
            held.append(wanted)
            rows, size = rows + wanted.num_rows, size + wanted.nbytes
            if rows >= _MAX_BATCH_ROWS or size >= _MAX_BATCH_BYTES:
                yield pa.Table.from_batches(held, PART_SCHEMA).combine_chunks()
                held, rows, size = [], 0, 0
        if held:
            yield pa.Table.from_batches(held, PART_SCHEMA).combine_chunks()


def _moves(plan: TimeTravelPlan) -> Iterator[tuple[int, PartitionMove]]:
    for buckets in plan.families:
        for commit_ts, ddl in buckets.family.ddls.items():
            move = move_of(ddl.past_move(ddl.before))
            if move is not None:
                yield commit_ts, move


def _changes_between(changes: pa.Table, after: int, through: int) -> pa.Table:
    commit_ts = changes["commit_ts"].to_numpy()
    first, end = np.searchsorted(commit_ts, [after, through], side="right")
    return changes.slice(int(first), int(end - first))


def _images(version: TableVersion, changes: pa.Table) -> pa.Table:
    """Return old and new images of changes, in order: the version's columns, PLACE and COMMIT_TS.

    An old image only has the columns that identify a row.
    """
    kinds, commit_ts = changes["kind"].to_numpy(), changes["commit_ts"].to_numpy()
    old, new = decode(version.table, kinds, changes["row"].combine_chunks())
    has_old, has_new = np.flatnonzero(kinds != INSERT), np.flatnonzero(kinds != DELETE)
    telling = {column.name for column in version.identity}
    columns: dict[str, pa.Array] = {}
    for column in version.columns:
        after = new[column.name]
        before = old[column.name] if column.name in telling else pa.nulls(len(has_old), after.type)
        columns[column.name] = pa.concat_arrays([before.cast(after.type), after])
    places = np.concatenate((has_old * 2, has_new * 2 + 1))
    columns[PLACE_COLUMN] = pa.array(places)
    columns[COMMIT_TS_COLUMN] = pa.array(np.concatenate((commit_ts[has_old], commit_ts[has_new])))
    return pa.table(columns).take(pa.array(np.argsort(places)))
