"""One bucket: the rows of a family's tables that fall into it, from the base through all changes and DDL."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from etl.asof.advance import PLACE, advanced
from etl.asof.ddl_effects import Tables
from etl.asof.lineage import Family
from etl.asof.plan import BASE_STRETCH


class Piece(NamedTuple):
    """A row of PIECES."""

    bucket: int
    stretch: int
    table_id: int
    task: int
    number: int
    rows: Any


Results = dict[tuple[int, str], pa.Table]
"""Rows by moment (TSO) and table name."""


def computed(family: Family, pieces: Iterable[Piece]) -> Results:
    """The rows of a bucket at each moment that is asked for. `pieces` by stretch, table, task and number. Raises
    AsOfError.
    """
    tables = Tables(family.versions[0])
    found: Results = {}
    waiting = _by_stretch(pieces)
    group = next(waiting, None)
    if group is not None and group[0] == BASE_STRETCH:
        for table_id, rows in group[1]:
            tables.rows[table_id] = rows
        group = next(waiting, None)
    for stretch, versions in enumerate(family.versions):
        if group is not None and group[0] == stretch:
            for table_id, images in group[1]:
                tables.rows[table_id] = advanced(versions[table_id], tables.rows[table_id], images)
            group = next(waiting, None)
        if stretch < len(family.breaks):
            _break(family, stretch, tables, found)
    return found


def _break(family: Family, stretch: int, tables: Tables, found: Results) -> None:
    at = family.breaks[stretch]
    if (ddl := family.ddls.get(at)) is not None:
        tables.execute(ddl, family.versions[stretch], family.versions[stretch + 1])
    for name, table_id in family.results.get(at, {}).items():
        found[at, name] = tables.rows[table_id]


def _by_stretch(pieces: Iterable[Piece]) -> Iterator[tuple[int, Iterator[tuple[int, pa.Table]]]]:
    for stretch, own in itertools.groupby(pieces, key=lambda piece: piece.stretch):
        yield stretch, ((i, _rows(of)) for i, of in itertools.groupby(own, key=lambda piece: piece.table_id))


def _rows(pieces: Iterable[Piece]) -> pa.Table:
    """The rows of pieces as one table, images with places that go on from piece to piece."""
    found, begin = [], 0
    for piece in pieces:
        rows = pa.ipc.open_stream(piece.rows).read_all()
        if PLACE in rows.column_names:
            at = rows.schema.get_field_index(PLACE)
            places = rows[PLACE].to_numpy() & 1
            # The order is that of the rows; of the place only the kind of image is needed from here.
            rows = rows.set_column(at, PLACE, pa.array((np.arange(len(places)) + begin) * 2 + places))
            begin += rows.num_rows
        found.append(rows)
    return pa.concat_tables(found).combine_chunks()
