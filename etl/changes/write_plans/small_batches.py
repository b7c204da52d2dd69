"""Reduce few changes of a table to their net effect, by the compiled kernels alone.

For so few the fixed cost of Arrow's and numpy's calls would be most of it.
`sluice.etl.changes.write_plans.same_shape_tables` asks for alike tables together.

Whatever isn't as it nearly always is, is left to `sluice.etl.changes.write_plans.table_changes`,
which gives the same rows, or the error.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.etl.changes.formats import kernel as lines_kernel
from sluice.etl.changes.formats.deletes import deletes_by_key, deletes_by_number
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.load_lines_native import format_small_load_native, needs_images
from sluice.etl.changes.steps import DeleteDetail, LoadDetail, Step
from sluice.etl.changes.write_plans.change_set import ChangeSet
from sluice.etl.changes.write_plans.identity import (
    identity,
    lookup_key_columns,
    replace_safe_columns,
)
from sluice.etl.changes.write_plans.raw_changes import RawChanges, find_changes, row_layout
from sluice.tidb import kernel as rows_kernel
from sluice.tidb.codec.datum import UVARINT, VARINT
from sluice.tidb.kernel import SAME, UNLOOKED, UNSURE
from sluice.tidb.native_images import NativeImages, RowLayout
from sluice.tidb.rows import ROWID_NAME
from sluice.tidb.schema import STATE_PUBLIC, Column, Table
from sluice.tidb.table_cache import TableCache

MAX_SMALL_CHANGES = lines_kernel.FEW
MAX_REWRITTEN_INDEX_ENTRIES = 16
"""Secondary index entries at most that are rewritten to save a statement.

See `ReducePlan._effect`.
"""
REFUSED = array("q", [-1, -1, -1]).tobytes()
"""The kernel's counts of a table that it leaves to other code."""
_KEY_KINDS = ("int", "text", "binary")
_WORD = 8  # bytes of a place
_FLAG_BITS = 56
_SIGNED, _UNSIGNED = {VARINT}, {VARINT, UVARINT}

Deleted = tuple[int, bytes]
"""Rows, and the statement."""


@dataclass(slots=True, eq=False)
class SmallNetEffect:
    """The net effect of at most FEW changes of a table.

    Nothing is known of the table but that the downstream was as the upstream before. Its steps are
    those that `TableChanges` gives. All its text is utf-8, it has a key, and it is merged with no
    other.
    """

    table: Table
    way: ReducePlan
    first_ts: int
    last_ts: int
    deleted: Sequence[Deleted]
    layout: LoadLayout
    """Layout of the texts."""
    written: int
    """Rows that take a free place."""
    written_text: bytes
    replaced: int
    """Rows that take the place of their former selves."""
    replaced_text: bytes
    worker: int | None = None
    """The session that executes its steps."""

    def deletes(self) -> Iterator[Step]:
        """Delete steps, to be executed before any load."""
        for rows, statement in self.deleted:
            yield self._step(DeleteDetail(self.first_ts, worker=self.worker), rows, statement)

    def loads(self) -> Iterator[Step]:
        """Yield load steps: first rows that take a free place, then those that replace one."""
        if self.written:
            yield self._load(self.written, 0, self.written_text)
        if self.replaced:
            yield self._load(self.replaced, self.replaced, self.replaced_text)

    def _load(self, rows: int, replaces: int, text: bytes) -> Step:
        detail = LoadDetail(
            self.first_ts,
            worker=self.worker,
            layout=self.layout,
            replaces=replaces,
            keys=self.way.names,
        )
        return self._step(detail, rows, text)

    def _step(self, detail: DeleteDetail | LoadDetail, rows: int, payload: bytes) -> Step:
        return Step(detail, self.last_ts, self.table.schema_name, self.table.name, rows, 0, payload)


def reduce_plan_for(segment: ChangeSet, table: Table, places: np.ndarray) -> ReducePlan | None:
    """Return how the changes of a table at some places are reduced.

    None where they can't be reduced so.
    """
    return (
        None
        if len(places) > MAX_SMALL_CHANGES
        or segment.needs_lenient_writes(table.id)
        or table.history
        else _reduce_plans(table)
    )


@dataclass(frozen=True, slots=True, eq=False)
class ReducePlan:
    """The way to reduce a table's changes; tables that are alike but for their names share one."""

    layout: RowLayout
    key: bytes
    """Slots (int64) of the columns that identify a change's row."""
    held: bytes | bool
    """Comparison of the columns that must be unchanged for a row to be replaced in place."""
    located: tuple[Column, ...]
    names: tuple[str, ...]
    """Names of those columns."""
    number: int
    """The slot of the number that is the key downstream; -1 if it is another one."""
    is_plain: bool
    """True if nothing takes more than cells."""
    is_text: bool
    """True if all lines have one layout, whatever is in them."""
    indexes: int
    """Beside the primary key."""

    def reduce(self, segment: ChangeSet, table: Table, places: np.ndarray) -> SmallNetEffect | None:
        kinds, layout, images = segment.column("kind", places), self.layout, None
        if self.is_plain:
            if segment.encoded is None:
                return None
            data, begins = segment.encoded
            found = rows_kernel.walk(
                data,
                begins,
                places,
                kinds.view(np.uint8),
                layout.slots,
                layout.handle,
                layout.of_inserts,
                layout.of_others,
            )
            if found is None:
                return None
            old, new, _ = found
        else:
            changes = RawChanges(
                kinds, segment.column("commit_ts", places), segment.all_rows, places
            )
            images = find_changes(table, changes)
            if images is None:
                return None
            data, old, new = images[0].data, images[0].cells, images[1].cells
        effect = self._effect(data, old, new, kinds.tobytes())
        if effect is None:
            return None
        gone, write, replace = effect
        lines = format_small_load_native(table, data, new, write + replace, images and images[1])
        deleted = self._deletes(table, old, gone, images and images[0])
        if lines is None or deleted is None:
            return None
        written, count = len(write) // _WORD, len(lines)
        return SmallNetEffect(
            table,
            self,
            segment.commit_ts(places[0]),
            segment.commit_ts(places[-1]),
            deleted,
            lines.layout,
            written,
            lines.some(0, written),
            count - written,
            lines.some(written, count),
        )

    def _effect(
        self, data: object, old: bytes, new: bytes, kinds: bytes
    ) -> tuple[bytes, bytes, bytes] | None:
        """Return places of images: old ones of rows to be removed, and two kinds of new ones.

        The new ones are of rows that come, and of those that take their former selves' places.
        """
        ends = len(kinds).to_bytes(_WORD, sys.byteorder)
        found = lines_kernel.net(data, old, new, self.layout.slots, self.key, kinds, ends)
        if found is None or found[4] == REFUSED:
            return None
        gone, write, before, after, _ = found
        if before:
            alike = rows_kernel.alike(data, old, new, self.layout.compared, before, after)
            if UNSURE in alike:
                return None
            if SAME in alike:
                before, after = (
                    _filter_by_code(alike, SAME, places, invert=True) for places in (before, after)
                )
        if before and self.held is not True:
            alike = (
                bytes(len(before) // _WORD)
                if self.held is False
                else rows_kernel.alike(data, old, new, self.held, before, after)
            )
            if UNSURE in alike:
                return None
            gone += _filter_by_code(alike, SAME, before, invert=True)
            write += _filter_by_code(alike, SAME, after, invert=True)
            before, after = (_filter_by_code(alike, SAME, places) for places in (before, after))
        # A REPLACE leaves alone what it doesn't change; but a statement costs more than to make
        # some entries again.
        if (
            gone
            and write
            and after
            and len(after) // _WORD * self.indexes <= MAX_REWRITTEN_INDEX_ENTRIES
        ):
            return gone + before, write + after, b""
        return gone, write, after

    def _deletes(
        self, table: Table, old: bytes, gone: bytes, images: NativeImages | None
    ) -> list[Deleted] | None:
        """Return rows and statement for the old images at some places."""
        if not gone:
            return []
        if self.number < 0:
            assert images is not None
            rows = np.frombuffer(gone, np.int64)
            columns = [images.some(column.name, rows) for column in self.located]
            return list(deletes_by_key(table, self.located, columns, once=False))
        column = self.located[0]
        cells, words = (
            memoryview(old).cast("Q"),
            memoryview(old).cast("Q" if column.unsigned else "q"),
        )
        at = [2 * (place * self.layout.slots + self.number) for place in memoryview(gone).cast("q")]
        if not {cells[each] >> _FLAG_BITS for each in at} <= (
            _UNSIGNED if column.unsigned else _SIGNED
        ):
            return None
        return list(deletes_by_number(table, column, [words[each + 1] for each in at]))


def _filter_by_code(codes: bytes, code: int, places: bytes, *, invert: bool = False) -> bytes:
    """Return those of the places (int64) that have a code, or haven't."""
    return b"".join(
        places[at : at + _WORD]
        for at, found in zip(range(0, len(places), _WORD), codes, strict=True)
        if (found == code) is not invert
    )


def _reduce_plan_of(table: Table) -> ReducePlan | None:
    layout, names, located = row_layout(table), identity(table), lookup_key_columns(table)
    held = replace_safe_columns(table)
    if not rows_kernel.IS_COMPILED or layout is None or not names or not located:
        return None
    kinds = {column.name: column.kind for column in layout.columns} | {ROWID_NAME: "int"}
    if any(kinds.get(name) not in _KEY_KINDS for name in names):
        return None
    slots = layout.slot_of
    codes = (
        bytes(
            code if name in held else UNLOOKED
            for name, code in zip(slots, layout.compared, strict=True)
        )
        if not isinstance(held, bool)
        else held
    )
    is_number = len(located) == 1 and located[0].kind == "int"
    is_plain = is_number and not needs_images(table) and not layout.shows_collations
    return ReducePlan(
        layout,
        array("q", [slots[name] for name in names]).tobytes(),
        codes,
        tuple(located),
        tuple(column.name for column in located),
        slots[located[0].name] if is_number else -1,
        is_plain,
        all(column.kind != "binary" for column in layout.columns),
        sum(not index.primary and index.state == STATE_PUBLIC for index in table.indexes),
    )


_reduce_plans = TableCache(_reduce_plan_of)
