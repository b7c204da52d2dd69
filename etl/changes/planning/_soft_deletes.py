"""Make deletes of tables whose deleted rows stay into updates that mark the row as deleted.

A delete becomes an update of the row to itself with the time of its commit. Behind this, such a
table's changes are written as those of a table whose rows may be there or not: whatever has one of
their keys goes, and the last image of each key comes. So a row that is inserted again takes the
place of the marked one, and writing changes twice leads to the same rows.

This comes behind row rules, as these make deletes of updates; what changes a row's key is divided
before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.conditions.comparison_keys import text_keys
from sluice.etl.changes.planning._selected_rows import inserted_row, old_half, with_moved
from sluice.etl.changes.rules import commit_time
from sluice.etl.changes.write_plans.raw_changes import Images, decode
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.codec.column_value import to_datum
from sluice.tidb.codec.datum import NIL, VARINT
from sluice.tidb.codec.varint import encode_varint
from sluice.tidb.rows import ROWID_NAME
from sluice.tidb.schema import Table

__all__ = ["mark_deletes", "marked_changes", "with_divided_updates"]

_NULL = bytes((NIL,))


def with_divided_updates(
    changes: pa.Table, tables: Iterable[tuple[Table, np.ndarray]]
) -> tuple[pa.Table, np.ndarray]:
    """Return changes (PART_SCHEMA, one chunk) with a delete and an insert for each change of a key.

    Only those of tables that keep deleted rows, so that the row of the former key stays. A key goes
    before it comes again. `tables`: each table with the places of its changes. The second result
    has the place that each change had.
    Raises the row codec's errors.
    """
    tables = list(tables)
    divided: dict[int, tuple[bytes, bytes]] = {}
    kinds, rows = changes["kind"].to_numpy(), changes["row"].combine_chunks()
    for table, places in tables:
        # A change of a clustered key is a delete and an insert already.
        if table.deletion_mark is not None and table.handle_kind == "heap":
            updates = places[kinds[places] == UPDATE]
            for place in updates[_changes_key(table, rows.take(pa.array(updates)))].tolist():
                row = rows[place].as_py()
                divided[place] = old_half(row), inserted_row(table, row)
    before = np.arange(changes.num_rows)
    if divided:
        before = np.repeat(before, [1 + (place in divided) for place in before.tolist()])
        firsts = {place: place + number for number, place in enumerate(sorted(divided))}
        moved: dict[int, tuple[int, bytes]] = {}
        for place, (old, new) in divided.items():
            moved[firsts[place]] = DELETE, old
            moved[firsts[place] + 1] = INSERT, new
        changes = with_moved(changes.take(pa.array(before)).combine_chunks(), moved)
    is_late = _late_deletes(changes, [table for table, _ in tables])
    if not is_late.any():
        return changes, before
    stamps = changes["commit_ts"].to_numpy()
    order = np.lexsort((np.arange(changes.num_rows), ~is_late, stamps))
    return changes.take(pa.array(order)).combine_chunks(), before[order]


def _late_deletes(changes: pa.Table, tables: Iterable[Table]) -> np.ndarray:
    """Return which deletes come behind the change that gives their key to another row (bool).

    TiKV has a transaction's changes by row id, so a row may take a key before the one that had it
    gives it away.
    """
    is_late = np.zeros(changes.num_rows, bool)
    ids, kinds, stamps = (changes[name].to_numpy() for name in ("table_id", "kind", "commit_ts"))
    rows = changes["row"].combine_chunks()
    for table in tables:
        if table.deletion_mark is None or table.handle_kind != "heap":
            continue
        places = np.flatnonzero(ids == table.id)
        if not len(places):
            continue
        images = decode(table, kinds[places], rows.take(pa.array(places)))
        old, new = (iter(_keys_and_rows(table, side)) for side in images)
        taken: dict[tuple[int, object], object] = {}
        for place in places.tolist():
            ts = int(stamps[place])
            gone = next(old) if kinds[place] != INSERT else None
            come = next(new) if kinds[place] != DELETE else None
            if come is not None:
                taken[ts, come[0]] = come[1]
            elif gone is not None and taken.get((ts, gone[0]), gone[1]) != gone[1]:
                is_late[place] = True
    return is_late


def _keys_and_rows(table: Table, images: Images) -> list[tuple[object, object]]:
    """Return each image's key, as the server compares it, and its row id."""
    if not images or not len(images[ROWID_NAME]):
        return []
    columns = {column.name: column for column in table.stored_columns}
    keys = zip(
        *(
            (
                text_keys(columns[name])(images[name])
                if columns[name].kind in ("text", "enum")
                else images[name]
            ).to_pylist()
            for name in table.primary_key
        ),
        strict=True,
    )
    return list(zip(keys, images[ROWID_NAME].to_pylist(), strict=True))


def _changes_key(table: Table, updates: pa.Array) -> np.ndarray:
    """Return which updates give a row another primary key (bool mask)."""
    found = np.zeros(len(updates), bool)
    if len(updates):
        old, new = decode(table, np.full(len(updates), UPDATE, np.int8), updates)
        for name in table.primary_key:
            found |= np.asarray(pc.not_equal(old[name], new[name]))
    return found


def mark_deletes(
    table: Table,
    changes: pa.Table,
    places: np.ndarray,
    moved: Mapping[int, tuple[int, bytes]],
) -> dict[int, tuple[int, bytes]]:
    """Return kind and encoded row, by place, of what becomes of the deletes at `places`.

    `changes`: PART_SCHEMA, one chunk. `moved`: what row rules have made of changes, in the same
    form. {} for a table whose deleted rows go.
    """
    mark = table.deletion_mark
    if mark is None:
        return {}
    found: dict[int, tuple[int, bytes]] = {}
    kinds, rows, stamps = changes["kind"].to_numpy(), changes["row"], changes["commit_ts"]
    at = bytes((VARINT,)) + encode_varint(mark.id)
    for place in places.tolist():
        kind, row = moved.get(place, (kinds[place], None))
        if kind == DELETE:
            old = rows[place].as_py() if row is None else row
            when = to_datum(mark, commit_time(stamps[place].as_py()))
            found[place] = UPDATE, old + at + _NULL + old + at + when
    return found


def marked_changes(table: Table, changes: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Return changes (PART_SCHEMA), all of `table`, as they are written, and their former places.

    Raises the row codec's errors.
    """
    if table.deletion_mark is None or not changes.num_rows:
        return changes, np.arange(changes.num_rows)
    whole, before = with_divided_updates(
        changes.combine_chunks(), [(table, np.arange(changes.num_rows))]
    )
    places = np.arange(whole.num_rows)
    return with_moved(whole, mark_deletes(table, whole, places, {})), before
