"""Decode the relay log's row changes into their images: the rows before and after."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

import sluice.tidb.rows
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.native_images import NativeImages, RowLayout, find_images
from sluice.tidb.row_images import DecodedImages, JoinedImages, RowImages
from sluice.tidb.rows import (
    DecodeStats,
    check_collations,
    decode_deletes,
    decode_inserts,
    decode_updates,
)
from sluice.tidb.schema import Table
from sluice.tidb.table_cache import TableCache

DECODE_BATCH_ROWS = 65_536
_DECODE_BATCH_BYTES = 64 * 2**20
_SMALL_BATCH_VALUES = 2_048  # values
_MAX_BATCH_CELLS = 5_000_000  # values of an image; what is known of each takes 16 bytes

_KINDS = ("insert", "update", "delete")

Images = dict[str, pa.Array]
"""A column each, by name."""
_Pieces = tuple[RowImages, ...]


def image_count(images: Images) -> int:
    """Return the number of rows of images."""
    return len(next(iter(images.values()))) if images else 0


@dataclass(frozen=True, slots=True)
class RawChanges:
    """Changes of one table in their order, one entry a change."""

    kinds: np.ndarray
    """int8, as in PART_SCHEMA."""
    commit_ts: np.ndarray
    """Commit timestamps as int64."""
    rows: pa.LargeBinaryArray
    """Rows in TiDB's old row format."""
    places: np.ndarray | None = None
    """int64: where among `rows` those of the changes are; None: they are all of them."""

    @property
    def own_rows(self) -> pa.LargeBinaryArray:
        """Return the rows of these changes, one each."""
        return self.rows if self.places is None else self.rows.take(pa.array(self.places))

    @classmethod
    def from_table(cls, changes: pa.Table) -> Self:
        """Return the changes of a table in PART_SCHEMA."""
        return cls(
            changes["kind"].to_numpy(),
            changes["commit_ts"].to_numpy(),
            changes["row"].combine_chunks(),
        )


def decode(
    table: Table, kinds: np.ndarray, rows: pa.LargeBinaryArray, stats: DecodeStats | None = None
) -> tuple[Images, Images]:
    """Return (old images, new images) by column name, each in the order of the changes.

    `kinds` and `rows` as in RawChanges; `stats` is added to. Raises the row codec's errors.
    """
    counted = DecodeStats() if stats is None else stats
    places = _by_kind(kinds)
    decoded = (
        _in_batches(functools.partial(decode_some, table, stats=counted), rows, at)
        for decode_some, at in zip(
            (decode_inserts, decode_updates, decode_deletes), places, strict=True
        )
    )
    inserted, updated, deleted = (tuple(map(decoded_images, images)) for images in decoded)
    old, new = _joined_images(table, places, inserted, updated, deleted)
    return dict(old), dict(new)


def images_of(table: Table, changes: RawChanges, stats: DecodeStats) -> tuple[RowImages, RowImages]:
    """Return the images as `decode`, but decode what the compiled kernel finds on demand.

    It is for callers that don't look at every column of every row. Elsewhere decoding needs
    several times the memory of what comes out, so where there is more than a portion of some kind
    everything is decoded; and where there is so little that choosing costs more.
    """
    found = find_changes(table, changes)
    if found is not None:
        stats.rows += len(changes.kinds)
        stats.absent += found[2]
        return found[:2]
    kinds, rows = changes.kinds, changes.own_rows
    places = _by_kind(kinds)
    if len(kinds) * len(table.columns) <= _SMALL_BATCH_VALUES or max(
        map(len, places)
    ) > _batch_rows(rows):
        old, new = decode(table, kinds, rows, stats)
        return decoded_images(old), decoded_images(new)
    inserted, updated, deleted = (
        sluice.tidb.rows.images_of(what, table, rows.take(pa.array(at)), stats) if len(at) else ()
        for what, at in zip(_KINDS, places, strict=True)
    )
    return _joined_images(table, places, inserted, updated, deleted)


def find_changes(
    table: Table, changes: RawChanges
) -> tuple[NativeImages, NativeImages, bool] | None:
    """Return the old and the new images as the compiled kernel finds them; None if it doesn't.

    The third value is True if an old one lacks a column's value. Raises the row codec's errors.
    """
    layout, count = row_layout(table), len(changes.kinds)
    if layout is None or count > DECODE_BATCH_ROWS or count * layout.slots > _MAX_BATCH_CELLS:
        return None
    places = np.arange(count) if changes.places is None else changes.places
    if layout.shows_collations and len(inserts := np.flatnonzero(changes.kinds == INSERT)):
        first = changes.rows[int(places[inserts[0]])].as_py()
        if first is not None:
            check_collations(table, first)

    return find_images(layout, changes.kinds, changes.rows, places, _LazyImages(table, changes))


class _LazyImages:
    """The images of changes by way of `decode`, on demand."""

    __slots__ = ("_changes", "_images", "_table")

    def __init__(self, table: Table, changes: RawChanges) -> None:
        self._table, self._changes = table, changes
        self._images: tuple[RowImages, RowImages] | None = None

    def __call__(self) -> tuple[RowImages, RowImages]:
        """Return the images. Raises the row codec's errors."""
        if self._images is None:
            old, new = decode(self._table, self._changes.kinds, self._changes.own_rows)
            self._images = decoded_images(old), decoded_images(new)
        return self._images


row_layout = TableCache(RowLayout.for_table)
"""The layout of a table's rows; None for a table that the kernel doesn't know."""


def decoded_images(images: Images) -> RowImages:
    """Return what is decoded already."""
    return DecodedImages(images, image_count(images))


def _by_kind(kinds: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(kinds == kind) for kind in (INSERT, UPDATE, DELETE)]


def _joined_images(
    table: Table,
    places: Sequence[np.ndarray],
    inserted: _Pieces,
    updated: _Pieces,
    deleted: _Pieces,
) -> tuple[RowImages, RowImages]:
    """Return (old images, new images) at `places`, in the order of the changes.

    () for a kind that there isn't.
    """
    inserts, updates, deletes = places
    before = [(updated[:1], updates), (deleted, deletes)]
    after = [(inserted, inserts), (updated[1:], updates)]
    return _merged_in_order(before, table), _merged_in_order(after, table)


def _merged_in_order(pieces: Sequence[tuple[_Pieces, np.ndarray]], table: Table) -> RowImages:
    there = [(images[0], at) for images, at in pieces if images]
    if len(there) < 2:
        return there[0][0] if there else decoded_images(_empty(table))
    return JoinedImages(
        [each for each, _ in there],
        np.argsort(np.concatenate([at for _, at in there]), kind="stable"),
    )


def _batch_rows(rows: pa.LargeBinaryArray) -> int:
    """Return how many rows are decoded at a time."""
    size: int = _DECODE_BATCH_BYTES * max(1, len(rows)) // max(1, rows.nbytes)
    return max(1, min(DECODE_BATCH_ROWS, size))


def _in_batches(
    decode_some: Callable[..., Any], rows: pa.LargeBinaryArray, places: np.ndarray
) -> list[Images]:
    """Return what `decode_some` makes of the rows at `places`, one batch or a pair.

    A portion at a time, since decoding needs several times the memory of what comes out. [] for no
    rows.
    """
    size = _batch_rows(rows)
    found: list[tuple[pa.RecordBatch, ...]] = []
    for first in range(0, len(places), size):
        batches = decode_some(rows.take(pa.array(places[first : first + size])))
        found.append(batches if isinstance(batches, tuple) else (batches,))
    return [_columns(images) for images in zip(*found, strict=True)]


def _columns(batches: Sequence[pa.RecordBatch]) -> Images:
    names = batches[0].schema.names
    return {
        name: batches[0].column(i)
        if len(batches) == 1
        else pa.concat_arrays([batch.column(i) for batch in batches])
        for i, name in enumerate(names)
    }


def _empty(table: Table) -> Images:
    return _columns([decode_inserts(table, pa.array([], pa.large_binary()))])
