"""Decode a change set's rows for write planners that keep every change, as the original does.

ENUM and SET stay numbers, TIMESTAMPs are in the wanted time zone, and virtual generated columns
are there where TiDB wrote them, which is in deletes.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.etl.changes.steps import ChangeError
from sluice.etl.changes.write_plans.change_set import ChangeSet
from sluice.etl.changes.write_plans.raw_changes import Images
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.row import read_pairs
from sluice.tidb.column_types import BIGINT, FLAG_UNSIGNED
from sluice.tidb.rows import decode_deletes, decode_inserts, decode_updates
from sluice.tidb.schema import Column, Table

_UTC = datetime.UTC


@dataclass(frozen=True, slots=True)
class KindChanges:
    """Changes of one kind in one table.

    `old` has updates and deletes, `new` inserts and updates; the other is empty. Columns by name,
    in the table's order; ENUM and SET are uint64.
    """

    table: Table
    kind: int
    places: npt.NDArray[np.int64]
    old: Images
    new: Images


def changes_of(segment: ChangeSet, zone: datetime.tzinfo) -> Iterator[KindChanges]:
    """Yield every change of the segment, TIMESTAMPs in `zone`. Raises the row codec's errors."""
    for table, places in segment.tables:
        kinds = segment.column("kind", places)
        for kind in (INSERT, UPDATE, DELETE):
            chosen = places[kinds == kind]
            if not len(chosen):
                continue
            rows = segment.rows_of(chosen)
            with_virtual = kind == DELETE and _holds_virtual(table, rows[0].as_py())
            raw = _raw_table(table, with_virtual=with_virtual)
            old = new = None
            if kind == INSERT:
                new = decode_inserts(raw, rows)
            elif kind == DELETE:
                old = decode_deletes(raw, rows)
            else:
                old, new = decode_updates(raw, rows)
            yield KindChanges(
                table, kind, chosen, _images(table, old, zone), _images(table, new, zone)
            )


def raw_image(column: Column, values: pa.Array, zone: datetime.tzinfo) -> pa.Array:
    """Return a column's decoded values as `KindChanges` has them: ENUM and SET as numbers.

    Raises ChangeError for a value that is none of the column's elements.
    """
    if column.kind == "timestamp":
        return in_zone(values, zone)
    if column.kind not in ("enum", "set"):
        return values
    coded = values.dictionary_encode()
    numbers = [_element_number(column, text) for text in coded.dictionary.to_pylist()]
    return pa.array(numbers, pa.uint64()).take(coded.indices)


def _element_number(column: Column, text: str) -> int:
    names = text.split(",") if column.kind == "set" else [text]
    unknown = [name for name in names if name and name not in column.elems]
    if unknown:
        raise ChangeError(
            f"column {column.name!r} has the value {text!r}, and no element {unknown[0]!r}",
            hint="copy from a source that was made of this table's present definition",
        )
    return _number(column, text) or 0


def in_zone(texts: pa.Array, zone: datetime.tzinfo) -> pa.Array:
    """Convert TIMESTAMP texts from UTC to `zone`; zero dates stay what they are.

    Each different one is converted once.
    """
    if zone is _UTC or getattr(zone, "key", "") == "UTC" or len(texts) == 0:
        return texts
    coded = texts.dictionary_encode()
    converted = pa.array(
        [_convert(text, zone) for text in coded.dictionary.to_pylist()], texts.type
    )
    return converted.take(coded.indices)


def _convert(text: str, zone: datetime.tzinfo) -> str:
    whole, point, fraction = text.partition(".")
    try:
        moment = datetime.datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=_UTC)
    except ValueError:
        return text
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S}{point}{fraction}"


def _holds_virtual(table: Table, row: bytes) -> bool:
    """Return whether a deleted row has the virtual columns' values: all of a cluster's or none."""
    wanted = {column.id for column in table.columns if column.public and column.virtual}
    if not wanted:
        return False
    try:
        return wanted <= {column_id for column_id, _, _ in read_pairs(row, 0)}
    except CodecError:
        return False  # decoding the row will raise what is wrong with it


@functools.lru_cache(maxsize=256)
def _raw_table(table: Table, *, with_virtual: bool) -> Table:
    """Return the table with its ENUMs and SETs as the numbers that rows hold.

    If wanted, virtual columns are stored ones.
    """
    columns = tuple(_raw_column(column, with_virtual=with_virtual) for column in table.columns)
    return replace(table, columns=columns) if columns != table.columns else table


def _raw_column(column: Column, *, with_virtual: bool) -> Column:
    if column.kind in ("enum", "set"):
        number = _number(column, missing_value(column))
        default = None if number is None else str(number)
        column = replace(
            column,
            tp=BIGINT,
            flag=column.flag | FLAG_UNSIGNED,
            origin_default=default,
            default=None,
        )
    return replace(column, generated_stored=True) if with_virtual and column.virtual else column


def _number(column: Column, text: str | None) -> int | None:
    if text is None:
        return None
    if column.kind == "enum":
        return column.elems.index(text) + 1 if text in column.elems else 0
    return sum(1 << column.elems.index(name) for name in text.split(",") if name in column.elems)


def _images(table: Table, batch: pa.RecordBatch | None, zone: datetime.tzinfo) -> Images:
    if batch is None:
        return {}
    times = {column.name for column in table.columns if column.kind == "timestamp"}
    return {
        name: in_zone(batch[name], zone) if name in times else batch[name]
        for name in batch.schema.names
    }
