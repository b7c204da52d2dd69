"""Invert the changes of one table: rows to delete, rows to insert again, rows to change back.

Changes of one row count together, so a row that was changed several times in the transaction is
handled once, and what it did not change in the end isn't touched. Rows that hold each other's
unique values (a swap) can't be updated one after the other: they are deleted, and inserted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.etl.changes.write_plans.identity import identity
from sluice.etl.changes.write_plans.net_effect import (
    NetEffect,
    key_codes,
    multiset_effect,
    net_effect,
    unchanged_rows,
)
from sluice.etl.changes.write_plans.raw_changes import Images, RawChanges, decode, image_count
from sluice.etl.changes.write_plans.reduced_table import comparable_keys
from sluice.etl.history.errors import UndoError
from sluice.etl.history.find import row_text
from sluice.etl.history.undo.transaction import TouchedTable
from sluice.relay import DELETE, INSERT
from sluice.tidb import tso
from sluice.tidb.schema import STATE_PUBLIC, WHOLE_COLUMN, Index, Table


@dataclass(frozen=True, slots=True)
class InverseChanges:
    """Inverse changes; `left`: rows as the transaction left them, that go.

    `again`: rows as they were, that come again; `after` and `before`: rows as the transaction left
    them, and what they become. The columns are those of the table then.
    """

    touched: TouchedTable
    left: Images
    again: Images
    after: Images
    before: Images

    @property
    def rows(self) -> int:
        """Return how many row changes it takes."""
        return sum(image_count(images) for images in (self.left, self.again, self.after))

    def without(
        self, left: Sequence[int], again: Sequence[int], updated: Sequence[int]
    ) -> InverseChanges:
        """Return the changes without the rows at these places; `updated` ones of `after`."""
        return InverseChanges(
            self.touched,
            _images_without(self.left, left),
            _images_without(self.again, again),
            _images_without(self.after, updated),
            _images_without(self.before, updated),
        )


def invert_changes(touched: TouchedTable) -> InverseChanges:
    """Invert a table's changes. Raises UndoError, InconsistentHistory and RowDecodeError."""
    table = touched.then
    changes = RawChanges.from_table(touched.changes)
    old, new = decode(table, changes.kinds, changes.rows)
    effect = _effect(table, changes, old, new)
    stored = [column.name for column in table.stored_columns]
    same = unchanged_rows(
        [old[n] for n in stored], [new[n] for n in stored], effect.updated_old, effect.updated_new
    )
    kept_old, kept_new = effect.updated_old[~same], effect.updated_new[~same]
    apart = _conflicting_updates(
        table, _images_reversed(old, kept_old), _images_reversed(new, kept_new)
    )[::-1]  # as `_images_reversed` has turned them round
    if apart.any() and touched.added:
        names = ", ".join(column.name for column in touched.added)
        raise UndoError(
            f"{touched.now.full_name}: rows that exchanged unique values would have to go and come"
            f" again, and lose what is in the columns {names}, which were added since"
        )
    return InverseChanges(
        touched,
        _images_reversed(new, np.concatenate((effect.inserted, kept_new[apart]))),
        _images_reversed(old, np.concatenate((effect.deleted, kept_old[apart]))),
        _images_reversed(new, kept_new[~apart]),
        _images_reversed(old, kept_old[~apart]),
    )


def _effect(table: Table, changes: RawChanges, old: Images, new: Images) -> NetEffect:
    columns = {column.name: column for column in table.stored_columns}
    names = identity(table) or tuple(columns)
    codes = key_codes(
        *([comparable_keys(images[n], columns.get(n)) for n in names] for images in (old, new))
    )
    if not identity(table):
        return multiset_effect(*codes)
    ts = changes.commit_ts
    if len(ts) and ts[0] != ts[-1]:
        _check_follows(table, changes, codes, old, new)
    return net_effect(changes.kinds, *codes)


def _check_follows(
    table: Table,
    changes: RawChanges,
    codes: tuple[np.ndarray, np.ndarray],
    old: Images,
    new: Images,
) -> None:
    """Raise UndoError for a change that didn't find its row as the last of these had left it.

    Changes of several transactions may be a choice, and others in between are left out.
    """
    with_old = np.flatnonzero(changes.kinds != INSERT)
    with_new = np.flatnonzero(changes.kinds != DELETE)
    keys = np.concatenate(codes)
    # two slots a change: its old image, then its new one
    slots = np.concatenate((2 * with_old, 2 * with_new + 1))
    places = np.concatenate((np.arange(len(with_old)), np.arange(len(with_new))))
    order = np.lexsort((slots, keys))
    keys, slots, places = keys[order], slots[order], places[order]
    pairs = np.flatnonzero(keys[1:] == keys[:-1])
    was_there, is_old = slots[pairs] % 2 == 1, slots[pairs + 1] % 2 == 0
    follows = pairs[was_there & is_old]
    stored = [column.name for column in table.stored_columns]
    same = unchanged_rows(
        [new[name] for name in stored],
        [old[name] for name in stored],
        places[follows],
        places[follows + 1],
    )
    broken = np.concatenate((pairs[was_there != is_old], follows[~same])) + 1
    if not len(broken):
        return
    first = broken[np.argmin(slots[broken])]
    change, image = int(slots[first]) // 2, int(places[first])
    row = row_text(new if slots[first] % 2 else old, identity(table), image)
    raise UndoError(
        f"{table.full_name} [{row}]: the change at commit_ts"
        f" {tso.text(int(changes.commit_ts[change]))} found the row otherwise than the one before"
        " it had left it: another change in between isn't among those to take back",
        hint="take it back, too, with a wider --where, --kind or --table; or end before it",
    )


def _images_reversed(images: Images, places: np.ndarray) -> Images:
    """Return the images at these places, the last one first."""
    index = pa.array(places[::-1], pa.int64())
    return {name: array.take(index) for name, array in images.items()}


def _images_without(images: Images, places: Sequence[int]) -> Images:
    kept = np.setdiff1d(np.arange(image_count(images)), places)
    index = pa.array(kept, pa.int64())
    return {name: array.take(index) for name, array in images.items()}


def _conflicting_updates(table: Table, before: Images, after: Images) -> np.ndarray:
    """Return which kept rows can't get a unique value back while another holds it (bool mask)."""
    count = image_count(after)
    found = np.zeros(count, bool)
    everything = np.arange(count)
    for names, is_exact in _unique_keys(table):
        if not names:  # what it holds isn't in the rows
            found |= count > 1
            continue
        old, new = ([images[name] for name in names] for images in (before, after))
        changed = ~unchanged_rows(old, new, everything, everything)
        if not is_exact:
            found |= changed & (np.count_nonzero(changed) > 1)
            continue
        held, wanted = key_codes(new, old)
        found |= changed & np.isin(wanted, held)
    return found


def _unique_keys(table: Table) -> list[tuple[tuple[str, ...], bool]]:
    """Return the columns of all unique keys, () for one over what isn't in the rows.

    With each whether values are equal for the key exactly when their bytes are.
    """
    stored = {column.name: column for column in table.stored_columns}
    keys: list[tuple[tuple[str, ...], bool]] = []
    if table.handle_column is not None:
        keys.append(((table.handle_column.name,), True))
    for index in table.indexes:
        if (index.unique or index.primary) and index.state == STATE_PUBLIC:
            names = tuple(name for name, _, _ in index.columns)
            keys.append((names if set(names) <= stored.keys() else (), _is_exact(table, index)))
    return keys


def _is_exact(table: Table, index: Index) -> bool:
    by_name = {column.name: column for column in table.columns}
    return all(
        length == WHOLE_COLUMN and by_name[name].kind not in ("text", "enum", "set", "decimal")
        for name, _, length in index.columns
    )
