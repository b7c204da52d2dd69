"""Reduce few changes of many tables that are alike but for their names together.

A few calls do it for all of them, since calls for each would be most of what a table costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.etl.changes.formats import kernel as lines_kernel
from sluice.etl.changes.formats.deletes import deletes_by_number
from sluice.etl.changes.formats.load_lines_native import format_small_load_native
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.small_batches import (
    MAX_REWRITTEN_INDEX_ENTRIES,
    ReducePlan,
    SmallNetEffect,
    reduce_plan_for,
)
from sluice.tidb import kernel as rows_kernel
from sluice.tidb.codec.datum import UVARINT, VARINT
from sluice.tidb.kernel import SAME, UNSURE
from sluice.tidb.schema import Table

MAX_BATCHED_CHANGES = 1024
"""Changes that are reduced at a time: what is found of them stays in the processor's caches."""
_MAX_BATCHED_BYTES = 1 << 20
_MIN_BATCHED_TABLES = 4
"""Tables for which numpy's calls are worth it."""
_FLAG_BITS = np.uint64(56)

_Changes = Sequence[tuple[Table, np.ndarray]]
"""Tables and places as ChangeSet has them."""
_Ints = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


def small_net_effects(segment: ChangeSet, timings: StageTimings) -> list[SmallNetEffect | None]:
    """Return for each of a change set's tables its small net effect, None if there is none."""
    found: list[SmallNetEffect | None] = [None] * len(segment.tables)
    alike: dict[ReducePlan, list[int]] = {}
    started = time.perf_counter()
    for number, (table, places) in enumerate(segment.tables):
        way = reduce_plan_for(segment, table, places)
        if way is not None:
            alike.setdefault(way, []).append(number)
    for way, numbers in alike.items():
        for some in _table_batches(segment, numbers):
            reduced = _reduce_tables(segment, way, [segment.tables[number] for number in some])
            for number, each in zip(some, reduced, strict=True):
                found[number] = each
    timings.reduce += time.perf_counter() - started
    return found


def _table_batches(segment: ChangeSet, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the tables with these numbers, as many at a time as are reduced together."""
    most = MAX_BATCHED_CHANGES
    if segment.encoded is not None and (count := len(segment.changes)):
        most = min(most, _MAX_BATCHED_BYTES * count // max(1, len(segment.encoded[0])))
    first = changes = 0
    for at, number in enumerate(numbers):
        here = len(segment.tables[number][1])
        if at > first and changes + here > most:
            yield numbers[first:at]
            first, changes = at, 0
        changes += here
    yield numbers[first:]


def _reduce_tables(
    segment: ChangeSet, way: ReducePlan, tables: _Changes
) -> Sequence[SmallNetEffect | None]:
    """Reduce each of some alike tables."""
    if len(tables) < _MIN_BATCHED_TABLES or not (way.is_plain and way.is_text):
        return [way.reduce(segment, table, places) for table, places in tables]
    found = _reduce_together(segment, way, tables)
    if found is not None:
        return found
    half = len(tables) // 2  # a table left out keeps few others from being reduced together
    return [
        *_reduce_tables(segment, way, tables[:half]),
        *_reduce_tables(segment, way, tables[half:]),
    ]


def _reduce_together(
    segment: ChangeSet, way: ReducePlan, tables: _Changes
) -> list[SmallNetEffect | None] | None:
    """Return the same as `ReducePlan.reduce` for each.

    None where something about one of them keeps it from all.
    """
    if segment.encoded is None:
        return None
    data, layout = segment.encoded[0], way.layout
    places = np.concatenate([places for _, places in tables])
    ends = np.cumsum([len(places) for _, places in tables])
    kinds = segment.column("kind", places)
    images = rows_kernel.walk(
        *segment.encoded,
        places,
        kinds.view(np.uint8),
        layout.slots,
        layout.handle,
        layout.of_inserts,
        layout.of_others,
    )
    if images is None:
        return None
    old, new, _ = images
    found = lines_kernel.net(data, old, new, layout.slots, way.key, kinds.tobytes(), ends)
    if found is None:
        return None
    effect = _BatchedEffect.from_kernel(
        way, (data, old, new), [np.frombuffer(each, np.int64) for each in found]
    )
    lines = format_small_load_native(tables[0][0], data, new, effect.come.tobytes(), None)
    if lines is None:
        return None
    keys = _keys(way, old, effect)
    commit_ts = segment.column("commit_ts", places)
    first_ts, last_ts = commit_ts[np.append(0, ends[:-1])].tolist(), commit_ts[ends - 1].tolist()
    refused, begins = effect.refused.tolist(), lines.offsets.tolist()
    ended = zip(
        effect.deleted_ends.tolist(),
        effect.written_ends.tolist(),
        effect.inserted_ends.tolist(),
        strict=True,
    )
    reduced: list[SmallNetEffect | None] = []
    gone = come = 0
    for number, (gone_end, written_end, come_end) in enumerate(ended):
        if refused[number]:
            reduced.append(None)
        else:
            table = tables[number][0]
            deleted = (
                tuple(deletes_by_number(table, way.located[0], keys[gone:gone_end]))
                if gone < gone_end
                else ()
            )
            first, middle, end = begins[come], begins[written_end], begins[come_end]
            reduced.append(
                SmallNetEffect(
                    table,
                    way,
                    first_ts[number],
                    last_ts[number],
                    deleted,
                    lines.layout,
                    written_end - come,
                    lines.text[first:middle],
                    come_end - written_end,
                    lines.text[middle:end],
                )
            )
        gone, come = gone_end, come_end
    return reduced


@dataclass(frozen=True, slots=True)
class _BatchedEffect:
    """The net effect of some tables' changes.

    Places of images lie table by table, those of each up to its end.
    """

    gone: _Ints
    """Places of old images of rows to be removed."""
    deleted_ends: _Ints
    come: _Ints
    """Places of new images.

    In each table first those that take a free place, then those that take that of their former
    selves.
    """
    written_ends: _Ints
    """The ends of the former."""
    inserted_ends: _Ints
    refused: _Mask
    """Tables whose net effect isn't known."""

    @classmethod
    def from_kernel(
        cls, way: ReducePlan, images: tuple[Any, bytes, bytes], found: Sequence[_Ints]
    ) -> _BatchedEffect:
        """Build it from `images` (data, cells of old and new ones) and the kernel's `net`.

        See" " `ReducePlan.reduce`.
        """
        gone, fresh, before, after, counts = found
        count = len(counts) // 3
        counted = counts.reshape(count, 3)
        refused = counted[:, 0] < 0
        gone_of, fresh_of, kept_of = (
            np.repeat(np.arange(count), column) for column in np.maximum(counted, 0).T
        )

        def alike(codes: bytes) -> npt.NDArray[np.uint8]:
            codes_of_pairs = np.frombuffer(
                rows_kernel.alike(*images, codes, before, after), np.uint8
            )
            refused[kept_of[codes_of_pairs == UNSURE]] = True
            return codes_of_pairs

        differ = alike(way.layout.compared) != SAME
        before, after, kept_of = before[differ], after[differ], kept_of[differ]
        held = (
            np.full(len(before), way.held)
            if isinstance(way.held, bool)
            else alike(way.held) == SAME
        )
        removed, written, replaced = (
            np.bincount(np.concatenate(owners), minlength=count)
            for owners in ((gone_of, kept_of[~held]), (fresh_of, kept_of[~held]), (kept_of[held],))
        )
        reinserted = (
            (removed > 0)
            & (written > 0)
            & (replaced > 0)
            & (replaced * way.indexes <= MAX_REWRITTEN_INDEX_ENTRIES)
        )
        renewed = held & reinserted[kept_of]
        moved, stays = ~held, held & ~renewed
        gone, gone_ends = _by_table(
            count,
            (gone, before[moved], before[renewed]),
            (gone_of, kept_of[moved], kept_of[renewed]),
        )
        come, come_ends = _by_table(
            count, (fresh, after[moved], after[renewed], after[stays]),
            (fresh_of, kept_of[moved], kept_of[renewed], kept_of[stays]),
        )  # fmt: skip
        written_ends = come_ends - np.bincount(kept_of[stays], minlength=count)
        return cls(gone, gone_ends, come, written_ends, come_ends, refused)


def _by_table(count: int, parts: Sequence[_Ints], owners: Sequence[_Ints]) -> tuple[_Ints, _Ints]:
    """Return places table by table, in each those of the first part first, and each table's end.

    `owners`: the table of each place, below `count`.
    """
    owner = np.concatenate(owners)
    places: _Ints = np.concatenate(parts)[np.argsort(owner, kind="stable")]
    return places, np.cumsum(np.bincount(owner, minlength=count))


def _keys(way: ReducePlan, old: bytes, effect: _BatchedEffect) -> list[int]:
    """Return the keys of the rows to be removed. A table with one that is no number is refused."""
    column = way.located[0]
    cells = np.frombuffer(old, np.uint64).reshape(-1, way.layout.slots, 2)[effect.gone, way.number]
    flags = cells[:, 0] >> _FLAG_BITS
    fits = flags == VARINT
    if column.unsigned:
        fits |= flags == UVARINT
    effect.refused[np.searchsorted(effect.deleted_ends, np.flatnonzero(~fits), side="right")] = True
    words = cells[:, 1]
    keys: list[int] = (words if column.unsigned else words.view(np.int64)).tolist()
    return keys
