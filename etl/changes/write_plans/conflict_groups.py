"""Plan groups of changes without conflict for parallel workers, with flush steps between rounds.

    flight                       everything up to the change set's end is in flight from here on
    delete, load (worker: n) …   in order within a worker; -1 is the session that also writes the
                                 checkpoint
    flush                        all workers commit what they have before any goes on
    delete, load …

Tables whose rows only their values identify can't be written twice without harm: they go through
session -1, in one transaction with the checkpoint. So do tables that are merged downstream, whose
keys meet those of others, those of which something is reverted, and those with every version of
their rows.

Few changes of a table go to one session as their net effect: to separate them would cost more than
to write them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.steps import FlushDetail, InFlightDetail, RowsDetail, Step
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.history_versions import HistoryVersions, history_versions_of
from sluice.etl.changes.write_plans.identity import conflict_keys
from sluice.etl.changes.write_plans.net_effect import key_codes
from sluice.etl.changes.write_plans.reduced_table import comparable_keys
from sluice.etl.changes.write_plans.same_shape_tables import small_net_effects
from sluice.etl.changes.write_plans.small_batches import SmallNetEffect
from sluice.etl.changes.write_plans.table_changes import (
    TableChanges,
    changes_of,
    check_merged_tables,
)
from sluice.etl.changes.write_plans.unique_key_conflicts import ConflictSchedule, schedule_conflicts
from sluice.relay import DELETE, INSERT
from sluice.tidb.schema import Column

CHECKPOINT_SESSION = -1
# multiplying by it spreads neighbouring codes over the high bits
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def plan_steps(segment: ChangeSet, timings: StageTimings, workers: int) -> Iterator[Step]:
    """Yield steps for `workers` sessions, 0 to workers - 1, and the checkpoint's."""
    dispatched = []
    alone: list[TableChanges | HistoryVersions] = []
    together: list[SmallNetEffect] = []
    for few, (table, places) in zip(
        small_net_effects(segment, timings), segment.tables, strict=True
    ):
        if few is not None:  # one session has it in order
            few.worker = len(together) % workers
            together.append(few)
            continue
        if table.history:
            if len(places):
                alone.append(history_versions_of(segment, table, places, timings))
            continue
        kinds = segment.column("kind", places)
        changes = changes_of(segment, table, places, timings)
        if (
            not changes.is_locatable
            or changes.source
            or table.id in segment.partial
            or table.id in segment.reverted
        ):
            alone.append(changes)
            continue
        started = time.perf_counter()
        found = _schedule(changes, kinds, segment.column("commit_ts", places))
        if found.flushes:  # then some images are written that the others hide
            changes.decode_all()
        dispatched.append((changes, kinds, places, found))
        timings.reduce += time.perf_counter() - started
    check_merged_tables([each for each in alone if isinstance(each, TableChanges)])
    # Not before all of it is decoded: what can't be was never in flight, and needn't be taken back.
    for each in (*alone, *(changes for changes, *_ in dispatched)):
        yield from each.as_bytes(segment.after)
    flight = InFlightDetail(segment.after, segment.left_out, segment.channel)
    yield Step(flight, segment.through)
    for each in alone:
        yield from _assigned_to(each.deletes(), CHECKPOINT_SESSION)
    for each in alone:
        yield from _assigned_to(each.loads(), CHECKPOINT_SESSION)
    for number in range(workers):
        for few in together[number::workers]:
            yield from few.deletes()
            yield from few.loads()
    for number in range(1 + max((found.flushes for *_, found in dispatched), default=0)):
        if number:
            yield Step(FlushDetail(), segment.through)
        for changes, kinds, places, found in dispatched:
            if found.flushes < number:
                continue
            if found.flushes:
                chosen = np.flatnonzero(found.rounds == number)
                kinds, places, groups = kinds[chosen], places[chosen], found.groups[chosen]
                changes = changes_of(segment, changes.table, places, timings)
            else:
                groups = found.groups
            yield from _by_worker(changes, kinds, groups, workers)


def _by_worker(
    changes: TableChanges, kinds: np.ndarray, groups: np.ndarray, workers: int
) -> Iterator[Step]:
    worker = ((groups.astype(np.uint64) * _HASH_MULTIPLIER) >> np.uint64(40)) % np.uint64(workers)
    old, new = worker[kinds != INSERT], worker[kinds != DELETE]
    for number in range(workers):
        yield from _steps_of(changes.only(old == number, new == number), number)


def _steps_of(changes: TableChanges, worker: int) -> Iterator[Step]:
    yield from _assigned_to(changes.deletes(), worker)
    yield from _assigned_to(changes.loads(), worker)


def _assigned_to(steps: Iterator[Step], worker: int) -> Iterator[Step]:
    for step in steps:
        yield replace(step, detail=replace(step.detail_of(RowsDetail), worker=worker))


def _schedule(changes: TableChanges, kinds: np.ndarray, commits: np.ndarray) -> ConflictSchedule:
    """Return rounds and groups of a table's changes.

    One group for all where equal keys can't be recognized from their values.
    """
    count = len(kinds)
    has_old, has_new = np.flatnonzero(kinds != INSERT), np.flatnonzero(kinds != DELETE)
    owners: list[np.ndarray] = []
    codes: list[np.ndarray] = []
    base = 0
    for names in conflict_keys(changes.table):
        folded = _folded_keys(changes, names) if names else None
        if folded is None:
            return ConflictSchedule(np.zeros(count, np.int32), np.zeros(count, np.int64))
        old, new, old_known, new_known = folded
        _, dense = np.unique(np.concatenate((old, new)), return_inverse=True)
        dense = dense.astype(np.int64) + base
        base = int(dense.max(initial=base)) + 1
        owners += [has_old[old_known], has_new[new_known]]
        codes += [dense[: len(old)][old_known], dense[len(old) :][new_known]]
    return schedule_conflicts(commits, np.concatenate(owners), np.concatenate(codes))


def _folded_keys(
    changes: TableChanges, names: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return codes of a key's old and new values, and which of them are no NULL.

    Values that any collation may call equal have one code; None if that is unknown.
    """
    columns = {column.name: column for column in changes.table.stored_columns}
    old, new = [], []
    for name in names:
        pair = [
            _fold(comparable_keys(images[name], columns.get(name)), columns.get(name))
            for images in (changes.old, changes.new)
        ]
        if pair[0] is None or pair[1] is None:
            return None
        old.append(pair[0])
        new.append(pair[1])
    known = []
    for arrays in (old, new):
        mask = np.ones(len(arrays[0]), bool)
        for array in arrays:
            mask &= np.asarray(pc.is_valid(array))
        known.append(mask)
    return *key_codes(old, new), known[0], known[1]


def _fold(array: pa.Array, column: Column | None) -> pa.Array | None:
    if column is None:  # the hidden row id
        return array
    if column.kind in ("float", "double"):
        return pc.add(array, 0.0)  # -0.0 is 0.0
    if column.kind not in ("text", "enum", "set"):
        return array
    if not pc.all(pc.string_is_ascii(array), min_count=0).as_py():
        return None  # which letters are equal is the collation's business
    text = pc.ascii_lower(array)
    if pc.any(pc.match_substring_regex(text, r"[\x00-\x1f\x7f]"), min_count=0).as_py():
        return None  # some collations don't see control characters
    return pc.ascii_rtrim(text, " ")
