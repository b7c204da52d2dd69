"""Compute one bucket: its rows of a group's tables, from the snapshot through changes and DDL."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sluice.etl.history.as_of.advance import PLACE_COLUMN, apply_changes
from sluice.etl.history.as_of.ddl_effects import BucketTables
from sluice.etl.history.as_of.lineage import TableGroup
from sluice.etl.history.as_of.read_tasks import SNAPSHOT_STEP, step_of
from sluice.etl.history.as_of.versions import TableVersion


class ShufflePiece(NamedTuple):
    """A row of PIECES."""

    bucket: int
    step: int
    table_id: int
    task: int
    number: int
    rows: Any


Results = dict[tuple[int, str], pa.Table]
"""Rows by moment (TSO) and table name."""


def compute_bucket(family: TableGroup, pieces: Iterable[ShufflePiece]) -> Results:
    """Compute the rows of a bucket at each requested moment.

    `pieces` by step, table, task and number. Raises AsOfError.
    """
    waiting = _StepReader(pieces)
    return _compute(family, waiting.take(SNAPSHOT_STEP), waiting)


def compute_untouched(family: TableGroup, table_id: int, rows: pa.Table) -> Results:
    """Compute what DDL makes of a table's rows in the snapshot that no change touches.

    Raises AsOfError.
    """
    return _compute(family, [(table_id, rows)], _StepReader(()))


def _compute(
    family: TableGroup, snapshot: Iterable[tuple[int, pa.Table]], waiting: _StepReader
) -> Results:
    tables = BucketTables(family.versions[0])
    for table_id, rows in snapshot:
        tables.rows[table_id] = rows
    found: Results = {}
    for stretch, at in enumerate(family.breaks):
        before, after = family.versions[stretch], family.versions[stretch + 1]
        _advance(tables, before, waiting.take(step_of(stretch)))
        if (ddl := family.ddls.get(at)) is not None:
            tables.execute(ddl, before, after)
        _advance(tables, after, waiting.take(step_of(stretch) + 1))
        for name, table_id in family.results.get(at, {}).items():
            found[at, name] = tables.rows[table_id]
    return found


def _advance(
    tables: BucketTables,
    versions: Mapping[int, TableVersion],
    images: Iterable[tuple[int, pa.Table]],
) -> None:
    for table_id, own in images:
        tables.rows[table_id] = apply_changes(versions[table_id], tables.rows[table_id], own)


class _StepReader:
    """Pieces in order, step by step."""

    def __init__(self, pieces: Iterable[ShufflePiece]) -> None:
        self._groups = itertools.groupby(pieces, key=lambda piece: piece.step)
        self._next = next(self._groups, None)

    def take(self, step: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield those of a step, by table; to be taken before the next step's."""
        if self._next is None or self._next[0] != step:
            return
        for table_id, own in itertools.groupby(self._next[1], key=lambda piece: piece.table_id):
            yield table_id, _rows(own)
        self._next = next(self._groups, None)


def _rows(pieces: Iterable[ShufflePiece]) -> pa.Table:
    """Join the rows of pieces into one table, images with places that go on from piece to piece."""
    found, begin = [], 0
    for piece in pieces:
        rows = pa.ipc.open_stream(piece.rows).read_all()
        if PLACE_COLUMN in rows.column_names:
            at = rows.schema.get_field_index(PLACE_COLUMN)
            places = rows[PLACE_COLUMN].to_numpy() & 1
            # The order is that of the rows; of the place only the kind of image is needed from
            # here.
            rows = rows.set_column(
                at, PLACE_COLUMN, pa.array((np.arange(len(places)) + begin) * 2 + places)
            )
            begin += rows.num_rows
        found.append(rows)
    return pa.concat_tables(found).combine_chunks()
