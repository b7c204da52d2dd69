"""Reduce the changes of one table in one change set to their net effect."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.conditions.comparison_keys import text_keys
from sluice.etl.changes.formats.load_lines_native import LoadLines, format_load_native
from sluice.etl.changes.formats.sql_columns import display_text, number_text
from sluice.etl.changes.steps import (
    ChangeError,
)
from sluice.etl.changes.write_plans.change_set import StageTimings
from sluice.etl.changes.write_plans.identity import (
    identity,
    lookup_key_columns,
    replace_safe_columns,
)
from sluice.etl.changes.write_plans.net_effect import (
    InconsistentHistory,
    NetEffect,
    key_codes,
    multiset_effect,
    net_effect,
    unchanged_rows,
)
from sluice.etl.changes.write_plans.raw_changes import (
    RawChanges,
    decode,
    decoded_images,
    images_of,
)
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.codec.row import column_ids
from sluice.tidb.kernel import SAME, UNSURE
from sluice.tidb.native_images import NativeImages
from sluice.tidb.row_images import RowImages
from sluice.tidb.rows import DecodeStats
from sluice.tidb.schema import Column, Table

_NO_ROWS = np.zeros(0, np.int64)
_MANY_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class TableContext:
    """A change set's fields for one table; ChangeSet explains each of them.

    These are the reasons why its rows downstream may not be what they were upstream before the
    changes.
    """

    safe: bool = False
    replayed: bool = False
    partial: bool = False
    source: str = ""
    """The upstream's name of a table that is merged with others downstream."""
    reverted: pa.Table | None = None
    """Changes of ignored transactions that may be downstream, in PART_SCHEMA."""
    contested: bool = False


_DEFAULT_CONTEXT = TableContext()


class ReducedTable:
    """The net effect of a table's changes, given in order.

    `old` holds the old images of the updates and deletes by column name, `new` the new images of
    the inserts and updates, each in the order of the changes.
    """

    def __init__(
        self,
        table: Table,
        changes: RawChanges,
        timings: StageTimings,
        circumstances: TableContext = _DEFAULT_CONTEXT,
    ) -> None:
        """Raise ChangeError and the row codec's errors."""
        self.table = table
        self.source = circumstances.source
        taken_back, kinds, commit_ts = circumstances.reverted, changes.kinds, changes.commit_ts
        self._partial = circumstances.partial or taken_back is not None
        self._has_gaps = self._partial or circumstances.contested
        self._lenient_loads = circumstances.safe or circumstances.partial
        self._safe = (
            circumstances.safe or circumstances.replayed or (self._partial and self.is_locatable)
        )
        both = (
            commit_ts
            if taken_back is None
            else np.sort(np.concatenate((commit_ts, taken_back["commit_ts"].to_numpy())))
        )
        self.first_ts, self.last_ts = int(both[0]), int(both[-1])
        self.changes = len(kinds)
        self._timings = timings
        if not self.is_locatable:
            self._raw, self._old_changes = changes, np.flatnonzero(kinds != INSERT)
        started = time.perf_counter()
        stats = DecodeStats()
        self.old, self.new = images_of(table, changes, stats)
        self._lacks_values = stats.absent > 0 or taken_back is not None
        if taken_back is not None:
            kinds = self._prepend_reverted(kinds, taken_back)
        decoded = time.perf_counter()
        self._reduce(kinds, commit_ts)
        timings.decode += decoded - started
        timings.reduce += time.perf_counter() - decoded

    def _prepend_reverted(self, kinds: np.ndarray, changes: pa.Table) -> np.ndarray:
        """Put the opposite of `changes`, the last one first, before all others.

        What no other transaction changed is as it was.
        """
        undone = changes["kind"].to_numpy()[::-1]
        new, old = decode(self.table, undone[::-1], changes["row"].combine_chunks())
        self.old, self.new = (
            _concat_after(images, decoded_images(opposite))
            for images, opposite in ((self.old, old), (self.new, new))
        )
        swapped = np.select([undone == INSERT, undone == DELETE], [DELETE, INSERT], UPDATE).astype(
            kinds.dtype
        )
        return np.concatenate((swapped, kinds))

    def _reduce(self, kinds: np.ndarray, commit_ts: np.ndarray) -> None:
        names = identity(self.table)
        effect = self._effect_by(names, kinds, commit_ts) if names else self._effect_by_values()
        if self._safe and self.is_locatable:
            # Whatever images of them are downstream, the rows go, and come back as they are in the
            # end.
            self._remove = _NO_ROWS
            self._set_new_rows(np.concatenate((effect.inserted, effect.updated_new)), _NO_ROWS)
            return
        if not len(effect.updated_old):
            self._remove = effect.deleted
            self._set_new_rows(effect.inserted, _NO_ROWS)
            return
        same = self._unchanged(effect.updated_old, effect.updated_new)
        kept_old, kept_new = effect.updated_old[~same], effect.updated_new[~same]
        # REPLACE may take a row's place only if it holds on to every unique value, else it could
        # remove another row.
        in_place = self._in_place(kept_old, kept_new)
        self._remove = np.concatenate((effect.deleted, kept_old[~in_place]))
        self._set_new_rows(
            np.concatenate((effect.inserted, kept_new[~in_place])), kept_new[in_place]
        )

    def _set_new_rows(self, write: np.ndarray, replace: np.ndarray) -> None:
        """Set the images that are written; `_write` and `_replace` are places in them then.

        What can't be decoded is an error here, before anything goes downstream.
        """
        self._new_row_places = np.concatenate((write, replace))
        self._new_rows = self.new.take(self._new_row_places)
        self._lines = self._native_lines()
        if self._lines is None and (
            len(self._new_row_places) or not isinstance(self.new, NativeImages)
        ):
            _decode_all(self._new_rows)
        every = np.arange(len(self._new_row_places))
        self._write, self._replace = every[: len(write)], every[len(write) :]

    def _native_lines(self) -> LoadLines | None:
        """Return the new images that are written, if they can be without being decoded."""
        if not isinstance(self.new, NativeImages):
            return None
        started = time.perf_counter()
        lines = format_load_native(self.table, self.new, self._new_row_places)
        spent = time.perf_counter() - started
        self._timings.format += spent
        self._timings.reduce -= spent
        return lines

    def _unchanged(self, kept_old: np.ndarray, kept_new: np.ndarray) -> np.ndarray:
        """Return which of the kept rows (bool mask) end up unchanged downstream.

        A REPLACE that changes nothing there isn't counted by the server.
        """
        mask = np.zeros(len(kept_old), bool)
        if not len(kept_old):
            return mask
        same = np.arange(len(kept_old))
        if isinstance(self.old, NativeImages) and isinstance(self.new, NativeImages):
            alike = self.old.alike(self.new, kept_old, kept_new)
            mask[alike == SAME] = True
            same = np.flatnonzero(alike == UNSURE)
            if len(same) == 0:
                return mask
        before, after = self.old.take(kept_old), self.new.take(kept_new)
        for column in _most_selective_first(self.table.stored_columns, before, after):
            if len(same) == 0:
                break
            a, b = (
                _as_printed(images.some(column.name, same), column) for images in (before, after)
            )
            same = same[unchanged_rows([a], [b], np.arange(len(same)), np.arange(len(same)))]
        mask[same] = True
        return mask

    def _effect_by(
        self, names: Sequence[str], kinds: np.ndarray, commit_ts: np.ndarray
    ) -> NetEffect:
        codes = self._numbers(names[0]) if len(names) == 1 else None
        if codes is None:
            columns = {column.name: column for column in self.table.stored_columns}
            keys = comparable_keys if self.table.deletion_mark is None else _collated_keys
            codes = key_codes(
                *(
                    [keys(images[n], columns.get(n)) for n in names]
                    for images in (self.old, self.new)
                )
            )
        try:
            return net_effect(kinds, *codes, partial=self._has_gaps)
        except InconsistentHistory as error:
            key = self._key_text(kinds, error.change, names)
            raise ChangeError(
                f"table {self.table.full_name}, row {key}: {error} at commit_ts"
                f" {int(commit_ts[error.change])}; the changes between {self.first_ts} and"
                f" {self.last_ts} contradict each other, so the relay log does not hold what the"
                " upstream did"
            ) from None

    def _numbers(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the old and new images' values of a column, if they are known as whole numbers."""
        if isinstance(self.old, NativeImages) and isinstance(self.new, NativeImages):
            old, new = self.old.numbers(name), self.new.numbers(name)
            if old is not None and new is not None:
                return old, new
        return None

    def _effect_by_values(self) -> NetEffect:
        """Return the net effect of rows that their values identify.

        What comes and goes in equal numbers is as it was.
        """
        columns = self.table.stored_columns
        old, new = (
            [_as_printed(images[c.name], c) for c in columns] for images in (self.old, self.new)
        )
        effect = multiset_effect(*key_codes(old, new))
        if not self._lacks_values or not len(effect.deleted) or not len(effect.inserted):
            return effect
        return self._without_dropped_columns(effect)

    def _without_dropped_columns(self, effect: NetEffect) -> NetEffect:
        """Return the effect without columns that TiDB is dropping.

        Old images come without them: there what the row was written with doesn't count.
        """
        short: dict[frozenset[int], list[int]] = {}
        for row, carried in zip(
            effect.deleted.tolist(), self._with_carried_columns(effect.deleted), strict=True
        ):
            if any(c.id not in carried for c in self.table.writable_columns):
                short.setdefault(carried, []).append(row)
        gone, come = effect.deleted, effect.inserted
        for carried, rows in short.items():
            columns = [c for c in self.table.writable_columns if c.id in carried]
            of, to = pa.array(rows), pa.array(come)
            if not columns or not len(come):
                continue
            old = [_as_printed(self.old[c.name].take(of), c) for c in columns]
            matched = multiset_effect(
                *key_codes(old, [_as_printed(self.new[c.name].take(to), c) for c in columns])
            )
            gone = np.setdiff1d(gone, np.setdiff1d(rows, np.array(rows)[matched.deleted]))
            come = come[matched.inserted]
        return NetEffect(gone, come, _NO_ROWS, _NO_ROWS)

    def _with_carried_columns(self, old: np.ndarray) -> list[frozenset[int]]:
        """Return the ids of the columns that these old images were sent with."""
        raw, rows = self._raw, self._raw.own_rows
        return [
            frozenset(column_ids(rows[i].as_py(), images=2 if raw.kinds[i] == UPDATE else 1))
            for i in self._old_changes[old].tolist()
        ]

    def _in_place(self, kept_old: np.ndarray, kept_new: np.ndarray) -> np.ndarray:
        keys = replace_safe_columns(self.table)
        if isinstance(keys, bool):
            return np.full(len(kept_old), keys)
        same = np.arange(len(kept_old))
        found = np.zeros(len(kept_old), bool)
        if isinstance(self.old, NativeImages) and isinstance(self.new, NativeImages):
            alike = self.old.alike(self.new, kept_old, kept_new, keys)
            found[alike == SAME] = True
            same = np.flatnonzero(alike == UNSURE)
        if len(same):
            old, new = ([images[name] for name in keys] for images in (self.old, self.new))
            found[same] = unchanged_rows(old, new, kept_old[same], kept_new[same])
        return found

    @property
    def is_locatable(self) -> bool:
        """Return whether rows are found downstream by a key.

        Without one only by all their values.
        """
        return bool(lookup_key_columns(self.table))

    def decode_all(self) -> None:
        """Decode all that is in the images, also what is never used.

        Raises the row codec's errors.
        """
        _decode_all(self.old)
        _decode_all(self.new)

    def _key_text(self, kinds: np.ndarray, change: int, identity: Sequence[str]) -> str:
        images, wanted = (
            (self.new, kinds != DELETE) if kinds[change] == INSERT else (self.old, kinds != INSERT)
        )
        at = int(np.count_nonzero(wanted[:change]))
        return ", ".join(f"{name}={display_text(images[name], at)!r}" for name in identity)


def _decode_all(images: RowImages) -> None:
    for name in images:
        images[name]


def _concat_after(images: RowImages, opposite: RowImages) -> RowImages:
    """Return the images behind those of reverted changes, the last one of these first."""
    backwards = np.arange(opposite.count)[::-1]
    columns = {
        name: pa.concat_arrays(
            [opposite.some(name, backwards).cast(images[name].type), images[name]]
        )
        for name in images
        if name in opposite
    }
    return decoded_images(columns)


def _most_selective_first(
    columns: Sequence[Column], before: RowImages, after: RowImages
) -> Sequence[Column]:
    """Return the columns, those whose bytes differ in most rows first.

    They show soonest that rows have changed, and what isn't looked at needn't be decoded.
    """
    if len(columns) < _MANY_COLUMNS:
        return columns

    def alike(column: Column) -> int:
        old, new = before.marks(column.name), after.marks(column.name)
        return before.count if old is None or new is None else int(np.count_nonzero(old == new))

    return sorted(columns, key=alike)


def _as_printed(array: pa.Array, column: Column) -> pa.Array:
    """Return values as the server prints them: FLOATs that differ may be printed the same."""
    return number_text(array) if column.kind == "float" else array


def _collated_keys(array: pa.Array, column: Column | None) -> pa.Array:
    """Return key values that are equal where the server takes them for equal.

    A row that is marked as deleted stays, so one whose key is written otherwise takes its place.
    """
    if column is not None and column.kind in ("text", "enum"):
        return text_keys(column)(array)
    return comparable_keys(array, column)


def comparable_keys(array: pa.Array, column: Column | None) -> pa.Array:
    """Return key values whose equality is equality of bytes: 1.10 and 1.1 are one DECIMAL."""
    if column is not None and column.kind == "decimal":
        return pc.if_else(
            pc.match_substring(array, "."), pc.replace_substring_regex(array, r"\.?0*$", ""), array
        )
    return array
