"""What few changes of a table come to, by the compiled kernels alone: for so few the fixed cost of Arrow's and numpy's
calls would be most of it.

Whatever isn't as it nearly always is, is left to `etl.shapes.table_changes`, which gives the same rows, or the error.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from etl.formats import kernel as lines_kernel
from etl.formats.deletes import deletes_by_key, deletes_by_number
from etl.formats.found_lines import FewLines, format_few, needs_images
from etl.shapes.identity import held_columns, identity, locating_columns
from etl.shapes.raw_changes import RawChanges, find_changes, row_layout
from etl.shapes.segment import Segment, Timings
from etl.steps import DeleteDetail, LoadDetail, Step
from upstream import kernel as rows_kernel
from upstream.codec.datum import UVARINT, VARINT
from upstream.found import FoundImages, RowLayout
from upstream.kernel import SAME, UNLOOKED, UNSURE
from upstream.per_table import PerTable
from upstream.rows import ROWID_NAME
from upstream.schema import STATE_PUBLIC, Column, Table

FEW = lines_kernel.FEW
_ANEW = 16
"""Entries of secondary indexes at most that are made anew to save a statement, see `_Way._effect`."""
_KEY_KINDS = ("int", "text", "binary")
_WORD = 8  # bytes of a place
_FLAG_BITS = 56
_SIGNED, _UNSIGNED = {VARINT}, {VARINT, UVARINT}


class FewChanges:
    """The net effect of at most FEW changes of a table, of which nothing is known but that the downstream was as the
    upstream before. As `TableChanges` gives it.
    """

    source = ""

    def __init__(self, table: Table, deleted: list[tuple[int, bytes]], lines: FewLines, written: int) -> None:
        """`deleted`: rows and statement. `lines`: of rows that come, of which the first `written` take a free place,
        the others that of their former selves.
        """
        self.table = table
        self._deleted, self._lines, self._written = deleted, lines, written
        self.first_ts = self.last_ts = 0
        self.worker: int | None = None
        """Which session executes its steps."""

    @classmethod
    def of(cls, segment: Segment, table: Table, places: np.ndarray, timings: Timings) -> FewChanges | None:
        """None where it can't be told so."""
        if len(places) > FEW or segment.is_doubtful(table.id):
            return None
        way = _way(table)
        if way is None:
            return None
        started = time.perf_counter()
        found = way.reduce(segment, table, places)
        timings.reduce += time.perf_counter() - started
        if found is not None:
            found.first_ts, found.last_ts = segment.commit_ts(places[0]), segment.commit_ts(places[-1])
        return found

    def as_bytes(self, after_ts: int) -> Iterator[Step]:
        """None: all its text is utf-8."""
        return iter(())

    def checks(self) -> Iterator[Step]:
        """None: it has a key."""
        return iter(())

    def new_keys(self) -> list[bytes]:
        """None: it is merged with no other."""
        return []

    def deletes(self) -> Iterator[Step]:
        """Delete steps, to be executed before any load."""
        for rows, statement in self._deleted:
            yield self._step(DeleteDetail(self.first_ts, worker=self.worker), rows, statement)

    def loads(self) -> Iterator[Step]:
        """Load steps: rows that take a free place first, then those that take the place of their former selves."""
        lines, written = self._lines, self._written
        keys = tuple(column.name for column in locating_columns(self.table))
        for first, end, replaces in ((0, written, 0), (written, len(lines), len(lines) - written)):
            if first < end:
                detail = LoadDetail(
                    self.first_ts, worker=self.worker, layout=lines.layout, replaces=replaces, keys=keys
                )
                yield self._step(detail, end - first, lines.some(first, end))

    def _step(self, detail: DeleteDetail | LoadDetail, rows: int, payload: bytes) -> Step:
        return Step(detail, self.last_ts, self.table.schema_name, self.table.name, rows, 0, payload)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a table's changes are reduced; tables that are alike but for their names have one."""

    layout: RowLayout
    key: bytes
    """The slots (int64) of the columns that say which row a change is about."""
    held: bytes | bool
    """How the columns are compared that must be as they were for a row to be replaced in its place."""
    located: tuple[Column, ...]
    number: int
    """The slot of the number that is the key downstream; -1 if it is another one."""
    is_plain: bool
    """Whether nothing takes more than cells."""
    indexes: int
    """Beside the primary key."""

    def reduce(self, segment: Segment, table: Table, places: np.ndarray) -> FewChanges | None:
        kinds, layout, images = segment.column("kind", places), self.layout, None
        if self.is_plain:
            if segment.encoded is None:
                return None
            data, begins = segment.encoded
            found = rows_kernel.walk(
                data, begins, places, kinds.view(np.uint8), layout.slots, layout.handle, layout.of_inserts,
                layout.of_others,
            )  # fmt: skip
            if found is None:
                return None
            old, new, _ = found
        else:
            changes = RawChanges(kinds, segment.column("commit_ts", places), segment.all_rows, places)
            images = find_changes(table, changes)
            if images is None:
                return None
            data, old, new = images[0].data, images[0].cells, images[1].cells
        effect = self._effect(data, old, new, kinds.tobytes())
        if effect is None:
            return None
        gone, write, replace = effect
        lines = format_few(table, data, new, write + replace, images and images[1])
        deleted = self._deletes(table, old, gone, images and images[0])
        if lines is None or deleted is None:
            return None
        return FewChanges(table, deleted, lines, len(write) // _WORD)

    def _effect(self, data: object, old: bytes, new: bytes, kinds: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Places of the old images of rows to be removed, of the new ones of rows that come, and of those that take
        their former selves' places.
        """
        found = lines_kernel.net(data, old, new, self.layout.slots, self.key, kinds)
        if found is None:
            return None
        gone, write, before, after = found
        if before:
            alike = rows_kernel.alike(data, old, new, self.layout.compared, before, after)
            if UNSURE in alike:
                return None
            if SAME in alike:
                before, after = (_where(alike, SAME, places, invert=True) for places in (before, after))
        if before and self.held is not True:
            alike = (
                bytes(len(before) // _WORD)
                if self.held is False
                else rows_kernel.alike(data, old, new, self.held, before, after)
            )
            if UNSURE in alike:
                return None
            gone += _where(alike, SAME, before, invert=True)
            write += _where(alike, SAME, after, invert=True)
            before, after = (_where(alike, SAME, places) for places in (before, after))
        # A REPLACE leaves alone what it doesn't change; but a statement costs more than to make some entries anew.
        if gone and write and after and len(after) // _WORD * self.indexes <= _ANEW:
            return gone + before, write + after, b""
        return gone, write, after

    def _deletes(
        self, table: Table, old: bytes, gone: bytes, images: FoundImages | None
    ) -> list[tuple[int, bytes]] | None:
        """Rows and statement for the old images at some places."""
        if not gone:
            return []
        if self.number < 0:
            assert images is not None
            rows = np.frombuffer(gone, np.int64)
            columns = [images.some(column.name, rows) for column in self.located]
            return list(deletes_by_key(table, self.located, columns, once=False))
        column = self.located[0]
        cells, words = memoryview(old).cast("Q"), memoryview(old).cast("Q" if column.unsigned else "q")
        at = [2 * (place * self.layout.slots + self.number) for place in memoryview(gone).cast("q")]
        if not {cells[each] >> _FLAG_BITS for each in at} <= (_UNSIGNED if column.unsigned else _SIGNED):
            return None
        return list(deletes_by_number(table, column, [words[each + 1] for each in at]))


def _where(codes: bytes, code: int, places: bytes, *, invert: bool = False) -> bytes:
    """Those of the places (int64) that have a code, or haven't."""
    return b"".join(
        places[at : at + _WORD]
        for at, found in zip(range(0, len(places), _WORD), codes, strict=True)
        if (found == code) is not invert
    )


def _way_of(table: Table) -> _Way | None:
    layout, names, located = row_layout(table), identity(table), locating_columns(table)
    held = held_columns(table)
    if not rows_kernel.IS_COMPILED or layout is None or not names or not located:
        return None
    kinds = {column.name: column.kind for column in layout.columns} | {ROWID_NAME: "int"}
    if any(kinds.get(name) not in _KEY_KINDS for name in names):
        return None
    slots = layout.slot_of
    codes = (
        bytes(code if name in held else UNLOOKED for name, code in zip(slots, layout.compared, strict=True))
        if not isinstance(held, bool)
        else held
    )
    is_number = len(located) == 1 and located[0].kind == "int"
    is_plain = is_number and not needs_images(table) and not layout.shows_collations
    return _Way(
        layout, array("q", [slots[name] for name in names]).tobytes(), codes, tuple(located),
        slots[located[0].name] if is_number else -1, is_plain,
        sum(not index.primary and index.state == STATE_PUBLIC for index in table.indexes),
    )  # fmt: skip


_way = PerTable(_way_of)
