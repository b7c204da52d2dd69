"""Convert one table's changes into rows of the lake.

There is a row for each image, the old one of an update right before the new one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.etl.changes.write_plans.raw_changes import decode
from sluice.etl.history.lake._names import COMMIT_TIME, COMMIT_TS, EXACT, OP, POS, ROWID, START_TS
from sluice.etl.history.lake._types import LakeColumn, lake_columns
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import tso
from sluice.tidb.schema import Table

__all__ = ["OPS", "LakeLayout"]

OPS = ("insert", "update_preimage", "update_postimage", "delete")
"""The kinds of a lake row, as Delta's change data feed names them."""
_EXACT_TYPE = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", "UTC")
_US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class LakeLayout:
    """The columns of a table as the lake has them."""

    table_id: int
    columns: tuple[LakeColumn, ...]

    @classmethod
    def for_table(cls, table: Table) -> LakeLayout:
        """Tables that are laid out alike have equal ones."""
        return cls(table.id, lake_columns(table))

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the lake's files: the table's columns, then the lake's own."""
        return pa.schema(
            [
                *(pa.field(column.name, column.type) for column in self.columns),
                pa.field(OP, pa.string(), nullable=False),
                pa.field(COMMIT_TS, pa.int64(), nullable=False),
                pa.field(COMMIT_TIME, _TIME, nullable=False),
                pa.field(START_TS, pa.int64(), nullable=False),
                pa.field(POS, pa.int32(), nullable=False),
                pa.field(EXACT, _EXACT_TYPE),
            ]
        )

    def rows(self, table: Table, changes: pa.Table, *, old_values: bool = True) -> pa.Table:
        """Return `changes` (PART_SCHEMA, of this table) as rows of the lake, in their order.

        `table`: the definition by which they were written. Without `old_values` rows of old images
        have the primary key and the hidden row id, and null otherwise. Raises the row codec's
        errors.
        """
        kinds = changes["kind"].to_numpy()
        old, new = decode(table, kinds, changes["row"].combine_chunks())
        images = _Images(kinds)
        kept = (
            {column.source for column in self.columns}
            if old_values
            else {*table.primary_key, ROWID}
        )
        arrays: list[pa.Array] = []
        exacts: list[tuple[str, pa.Array]] = []
        for column in self.columns:
            was = old[column.source]
            if column.source not in kept:
                was = pa.nulls(len(was), was.type)
            values = pa.concat_arrays([was, new[column.source]]).take(images.order)
            converted, exact = column.convert(values)
            arrays.append(converted)
            if exact is not None:
                exacts.append((column.name, exact))
        commit_ts, start_ts, position = (
            changes[name].to_numpy()[images.change]
            for name in ("commit_ts", "start_ts", "position")
        )
        arrays += [
            images.ops,
            pa.array(commit_ts),
            pa.array((commit_ts >> tso.LOGICAL_BITS) * _US_PER_MS).cast(_TIME),
            pa.array(start_ts),
            pa.array(position),
            _exact(exacts, len(commit_ts)),
        ]
        schema = self.schema
        return pa.Table.from_arrays(
            [array.cast(kind) for array, kind in zip(arrays, schema.types, strict=True)],
            schema=schema,
        )


class _Images:
    """The row images from which the lake's rows are made."""

    def __init__(self, kinds: np.ndarray) -> None:
        before, after = np.flatnonzero(kinds != INSERT), np.flatnonzero(kinds != DELETE)
        places = np.concatenate((before * 2, after * 2 + 1))
        order = np.argsort(places, kind="stable")
        self.change = places[order] // 2
        """The number of each row's change."""
        self.order = pa.array(order)
        """Its image: among the old ones, then the new ones."""
        is_after = places[order] % 2 == 1
        kind = kinds[self.change]
        ops = np.select([kind == INSERT, kind == DELETE, is_after], [0, 3, 2], 1)
        assert bool(np.all((kind != UPDATE) | np.isin(ops, (1, 2))))
        self.ops = pa.array(OPS).take(pa.array(ops))


def _exact(exacts: list[tuple[str, pa.Array]], rows: int) -> pa.Array:
    """Return a map a row from columns to what they can't hold; null for most."""
    if not exacts:
        return pa.nulls(rows, _EXACT_TYPE)
    there = np.stack([np.asarray(array.is_valid()) for _, array in exacts], axis=1)
    row, column = np.nonzero(there)
    keys = pa.array([name for name, _ in exacts]).take(pa.array(column))
    values = (
        pa.concat_arrays([array for _, array in exacts])
        .take(pa.array(column * rows + row))
        .cast(pa.string())
    )
    counts = there.sum(axis=1)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    return pa.MapArray.from_arrays(offsets, keys, values, mask=pa.array(counts == 0))
