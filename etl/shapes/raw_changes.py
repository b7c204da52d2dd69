"""Row changes as the relay log has them, and their images: the rows before and after, decoded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

import upstream.rows
from relay import DELETE, INSERT, UPDATE
from upstream.images import JoinedImages, MadeImages, RowImages
from upstream.rows import DecodeStats, decode_deletes, decode_inserts, decode_updates
from upstream.schema import Table

PORTION_ROWS = 65_536
_PORTION_BYTES = 64 * 2**20
_LITTLE = 2_048  # values

Images = dict[str, pa.Array]
"""A column each, by name."""


@dataclass(frozen=True, slots=True)
class RawChanges:
    """Changes of one table in their order, one entry a change."""

    kinds: np.ndarray
    """int8, as in PART_SCHEMA."""
    commit_ts: np.ndarray
    """int64"""
    rows: pa.LargeBinaryArray
    """In TiDB's old row format."""

    @classmethod
    def of(cls, changes: pa.Table) -> Self:
        """From a table in PART_SCHEMA."""
        return cls(changes["kind"].to_numpy(), changes["commit_ts"].to_numpy(), changes["row"].combine_chunks())


def decode(
    table: Table, kinds: np.ndarray, rows: pa.LargeBinaryArray, stats: DecodeStats | None = None
) -> tuple[Images, Images]:
    """(old images, new images) by column name, each in the order of the changes that have one. `kinds` and `rows` as in
    RawChanges; `stats` is added to. Raises the row codec's errors.
    """
    counted = DecodeStats() if stats is None else stats
    inserts, updates, deletes = (np.flatnonzero(kinds == kind) for kind in (INSERT, UPDATE, DELETE))
    (inserted,) = _in_portions(functools.partial(decode_inserts, table, stats=counted), rows, inserts) or (None,)
    (deleted,) = _in_portions(functools.partial(decode_deletes, table, stats=counted), rows, deletes) or (None,)
    before, after = _in_portions(functools.partial(decode_updates, table, stats=counted), rows, updates) or (None, None)
    return _merged((before, updates), (deleted, deletes), table), _merged((inserted, inserts), (after, updates), table)


def images_of(
    table: Table, kinds: np.ndarray, rows: pa.LargeBinaryArray, stats: DecodeStats
) -> tuple[RowImages, RowImages]:
    """As `decode`, for who doesn't look at every column of every row. Decoding needs several times the memory of what
    comes out, so where there is more than a portion of some kind everything is decoded; and where there is so little
    that choosing costs more.
    """
    places = [np.flatnonzero(kinds == kind) for kind in (INSERT, UPDATE, DELETE)]
    if len(kinds) * len(table.columns) <= _LITTLE or max(map(len, places)) > _portion(rows):
        old, new = decode(table, kinds, rows, stats)
        return made_images(old), made_images(new)
    inserted, updated, deleted = (
        upstream.rows.images_of(what, table, rows.take(pa.array(at)), stats) if len(at) else ()
        for what, at in zip(("insert", "update", "delete"), places, strict=True)
    )
    inserts, updates, deletes = places
    before = [(updated[:1], updates), (deleted, deletes)]
    after = [(inserted, inserts), (updated[1:], updates)]
    return _joined(before, table), _joined(after, table)


def made_images(images: Images) -> RowImages:
    """What is decoded already."""
    return MadeImages(images, len(next(iter(images.values()))) if images else 0)


def _joined(pieces: Sequence[tuple[tuple[RowImages, ...], np.ndarray]], table: Table) -> RowImages:
    """Images, each with the changes they belong to, in the order of the changes."""
    there = [(images[0], at) for images, at in pieces if images]
    if len(there) < 2:
        return there[0][0] if there else made_images(_empty(table))
    return JoinedImages([each for each, _ in there], np.argsort(np.concatenate([at for _, at in there]), kind="stable"))


def _portion(rows: pa.LargeBinaryArray) -> int:
    """So many are decoded at a time."""
    size: int = _PORTION_BYTES * max(1, len(rows)) // max(1, rows.nbytes)
    return max(1, min(PORTION_ROWS, size))


def _in_portions(decode_some: Callable[..., Any], rows: pa.LargeBinaryArray, places: np.ndarray) -> list[Images]:
    """What `decode_some` makes of the rows at `places`, one batch or a pair; a portion at a time, since decoding needs
    several times the memory of what comes out. [] for no rows.
    """
    size = _portion(rows)
    found: list[tuple[pa.RecordBatch, ...]] = []
    for first in range(0, len(places), size):
        batches = decode_some(rows.take(pa.array(places[first : first + size])))
        found.append(batches if isinstance(batches, tuple) else (batches,))
    return [_columns(images) for images in zip(*found, strict=True)]


def _columns(batches: Sequence[pa.RecordBatch]) -> Images:
    names = batches[0].schema.names
    return {
        name: batches[0].column(i) if len(batches) == 1 else pa.concat_arrays([batch.column(i) for batch in batches])
        for i, name in enumerate(names)
    }


def _merged(first: tuple[Images | None, np.ndarray], second: tuple[Images | None, np.ndarray], table: Table) -> Images:
    """Two sets of images, each with the changes they belong to, as one in the order of the changes."""
    (a, a_at), (b, b_at) = first, second
    if a is None or b is None:
        present = a if a is not None else b
        return present if present is not None else _empty(table)
    order = pa.array(np.argsort(np.concatenate((a_at, b_at)), kind="stable"))
    return {name: pa.concat_arrays([a[name], b[name]]).take(order) for name in a if name in b}


def _empty(table: Table) -> Images:
    return _columns([decode_inserts(table, pa.array([], pa.large_binary()))])
