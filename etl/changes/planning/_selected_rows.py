"""Take out of a table's changes what its row rules don't select.

An update whose row leaves the selection is a delete, one whose row enters it an insert. This comes
behind filters and partition moves, and before all write planners: none of them knows of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sluice.etl.changes.conditions import ImagePair
from sluice.etl.changes.rules import RowSelection
from sluice.etl.changes.write_plans.raw_changes import DECODE_BATCH_ROWS, RawChanges, images_of
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.codec import row as codec
from sluice.tidb.codec.datum import skip_datum
from sluice.tidb.old_collations import is_binary, restored_columns
from sluice.tidb.rows import ROWID_NAME, DecodeStats
from sluice.tidb.schema import Table


@dataclass(frozen=True, slots=True)
class SelectedChanges:
    """The places of changes that go downstream, and what those are that become another kind."""

    places: np.ndarray
    moved: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    """Kind and encoded row, by place."""


def select_changes(
    selection: RowSelection, table: Table, kinds: np.ndarray, rows: pa.Array, places: np.ndarray
) -> SelectedChanges:
    """Return what goes downstream of the changes at `places`, all of `table`, ascending.

    `kinds` and `rows` as in PART_SCHEMA. Raises the row codec's errors.
    """
    kept: list[np.ndarray] = []
    moved: dict[int, tuple[int, bytes]] = {}
    for kind in (INSERT, UPDATE, DELETE):
        own = places[kinds[places] == kind]
        for first in range(0, len(own), DECODE_BATCH_ROWS):
            some = own[first : first + DECODE_BATCH_ROWS]
            old, new = _judged(selection, table, kind, rows, some)
            kept.append(some[old | new])
            if kind == UPDATE:
                for place in some[old & ~new].tolist():
                    moved[place] = DELETE, old_half(rows[place].as_py())
                for place in some[new & ~old].tolist():
                    moved[place] = INSERT, inserted_row(table, rows[place].as_py())
    return SelectedChanges(np.sort(np.concatenate(kept)) if kept else places[:0], moved)


def _judged(
    selection: RowSelection, table: Table, kind: int, rows: pa.Array, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return of which changes of one kind the old and the new row are selected."""
    raw = RawChanges(
        np.full(len(places), kind, np.int8), np.zeros(len(places), np.int64), rows, places
    )
    old, new = images_of(table, raw, DecodeStats())
    pair = ImagePair(len(places), None if kind == INSERT else old, None if kind == DELETE else new)
    nothing = np.zeros(len(places), bool)
    return (
        nothing if kind == INSERT else selection.kept(kind, pair, "old"),
        nothing if kind == DELETE else selection.kept(kind, pair, "new"),
    )


def with_moved(changes: pa.Table, moved: Mapping[int, tuple[int, bytes]]) -> pa.Table:
    """Return changes (PART_SCHEMA, one chunk) with other kinds and rows at some places."""
    if not moved:
        return changes
    places = np.array(list(moved), np.int64)
    kinds = changes["kind"].to_numpy().copy()
    kinds[places] = [kind for kind, _ in moved.values()]
    rows = changes["row"].combine_chunks()
    index = np.arange(len(rows))
    index[places] = len(rows) + np.arange(len(places))
    replaced = pa.array([row for _, row in moved.values()], rows.type)
    columns = {"kind": kinds, "row": pa.concat_arrays([rows, replaced]).take(pa.array(index))}
    for name, values in columns.items():
        at = changes.schema.get_field_index(name)
        kind = changes.schema.field(at)
        changes = changes.set_column(at, kind, pa.array(values, kind.type))
    return changes.combine_chunks()


def selected_changes(
    selection: RowSelection, table: Table, changes: pa.Table
) -> tuple[pa.Table, np.ndarray]:
    """Return what goes downstream of changes (PART_SCHEMA), all of `table`, and their places."""
    whole = changes.combine_chunks()
    if not whole.num_rows:
        return whole, np.zeros(0, np.int64)
    found = select_changes(
        selection,
        table,
        whole["kind"].to_numpy(),
        whole["row"].combine_chunks(),
        np.arange(whole.num_rows),
    )
    return with_moved(whole, found.moved).take(pa.array(found.places)), found.places


def old_half(row: bytes) -> bytes:
    """Return the old row's pairs of an update: a deleted row, as TiDB writes it."""
    ends = []
    at = 0
    while at < len(row):
        at = skip_datum(row, skip_datum(row, at))
        ends.append(at)
    return row[: ends[len(ends) // 2 - 1]]


def inserted_row(table: Table, row: bytes) -> bytes:
    """Return the new row of an update as an inserted one. Raises CodecError."""
    _, new = codec.decode_update(table, row)
    names = [column.name for column in table.stored_columns]
    if table.handle_kind == "heap":
        names.append(ROWID_NAME)
    inserted = codec.encode_insert(table, dict(zip(names, new, strict=True)))
    if table.handle_kind != "common" or not is_binary(table):
        return inserted
    return _without_pairs(inserted, len(codec.handle_columns(table)), restored_columns(table))


def _without_pairs(row: bytes, handles: int, left_out: Collection[int]) -> bytes:
    """Return an inserted row without the pairs of columns that its handle holds as they are."""
    at = 0
    for _ in range(handles):
        at = skip_datum(row, at)
    found = bytearray(row[:at])
    for column_id, _, value_at in codec.read_pairs(row, at):
        end = skip_datum(row, value_at)
        if column_id not in left_out:
            found += row[at:end]
        at = end
    return bytes(found)
