"""Write the net effect of one table's changes as SQL."""

from __future__ import annotations

import copy
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pyarrow as pa

from sluice.etl.changes.formats.deletes import deletes_by_key, deletes_by_number
from sluice.etl.changes.formats.load_data import format_load
from sluice.etl.changes.formats.sql_columns import invalid_utf8_mask, key_conditions, row_conditions
from sluice.etl.changes.steps import (
    ChangeError,
    DeleteDetail,
    HoldAsBytes,
    ListedRows,
    LoadDetail,
    RowsDetail,
    Step,
)
from sluice.etl.changes.write_plans._keyless_deletes import MIN_LISTED_ROWS, KeylessDeletes
from sluice.etl.changes.write_plans.change_set import ChangeSet, StageTimings
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.changes.write_plans.raw_changes import DECODE_BATCH_ROWS, RawChanges
from sluice.etl.changes.write_plans.reduced_table import ReducedTable, TableContext
from sluice.tidb.folded import folded
from sluice.tidb.native_images import NativeImages
from sluice.tidb.row_images import RowImages
from sluice.tidb.schema import Column, Table


class TableChanges(ReducedTable):
    """The steps that bring the net effect of a table's changes downstream."""

    def only(self, old: np.ndarray, new: np.ndarray) -> Self:
        """Return what there is to do for the rows of which the masks over `old` and `new` hold.

        A row is in both masks or in none.
        """
        part = copy.copy(self)
        part._remove = self._remove[old[self._remove]]
        part._write = self._write[new[self._new_row_places[self._write]]]
        part._replace = self._replace[new[self._new_row_places[self._replace]]]
        return part

    def new_keys(self) -> list[bytes]:
        """Return the keys, as conditions, of the rows that take a free place.

        [] for a table without a key.
        """
        key = lookup_key_columns(self.table)
        found: list[bytes] = (
            key_conditions(key, [self._new_rows.some(c.name, self._write) for c in key]).to_pylist()
            if key
            else []
        )
        return found

    def as_bytes(self, after_ts: int) -> Iterator[Step]:
        """Yield a bytes step if there is text to be written that isn't utf-8."""
        if self._lines is not None or not self._new_rows.count:
            return
        yield from bytes_steps(self.table, self._new_rows, after_ts, self.last_ts)

    def checks(self) -> Iterator[Step]:
        """Yield, in safe mode, steps that check rows of a table without a key.

        These are load steps of rows that must not be there yet, and delete steps of rows that must
        not be there any more. A row that is there may be the one to be written, or to be removed,
        or its twin.
        """
        if self._safe and not self.is_locatable:
            written = np.arange(self.new.count)
            for step in itertools.chain(
                self._delete_steps(), self._load_steps(self.new, written, replaces=False)
            ):
                yield replace(step, detail=replace(step.detail_of(RowsDetail), absent=True))

    def deletes(self) -> Iterator[Step]:
        """Delete steps, to be executed before any load."""
        started = time.perf_counter()
        steps = list(self._delete_steps())
        self._timings.format += time.perf_counter() - started
        yield from steps

    def _delete_steps(self) -> Iterator[Step]:
        key = lookup_key_columns(self.table)
        if self._safe and key:
            yield from self._deletes_by_key(
                key, [pa.concat_arrays([self.old[c.name], self.new[c.name]]) for c in key]
            )
            return
        if len(self._remove) == 0:
            return
        if not key:
            yield from self._deletes_by_values(self._remove)
            return
        numbers = (
            self.old.numbers(key[0].name)
            if len(key) == 1 and isinstance(self.old, NativeImages)
            else None
        )
        if numbers is not None:
            removed = (
                numbers[self._remove].view(np.uint64 if key[0].unsigned else np.int64).tolist()
            )
            for rows, statement in deletes_by_number(self.table, key[0], removed):
                yield self._delete_step(rows, statement)
            return
        yield from self._deletes_by_key(key, [self.old.some(c.name, self._remove) for c in key])

    def _deletes_by_values(self, rows: np.ndarray) -> Iterator[Step]:
        columns = self.table.writable_columns
        images = [self.old.some(c.name, rows) for c in columns]
        conditions = self._row_conditions(images)
        wanted = Counter(conditions)
        one_of_each = pa.array(
            list({condition: at for at, condition in enumerate(conditions)}.values())
        )
        each = {c.name: image.take(one_of_each) for c, image in zip(columns, images, strict=True)}
        deleted = KeylessDeletes(self.table, list(wanted), list(wanted.values()), each)
        if len(wanted) < MIN_LISTED_ROWS or self._safe or self._lacks_values:
            for count, statement in deleted.statements():
                yield self._delete_step(count, statement)
            return
        for count, payload, listed in deleted.listed():
            yield self._delete_step(count, payload, listed)

    def _row_conditions(self, images: list[pa.Array]) -> list[bytes]:
        """Return conditions that find the removed rows by all their values.

        While TiDB drops a column, old images come without it: then what the downstream still has
        there doesn't count.
        """
        columns = self.table.writable_columns
        conditions: list[bytes] = row_conditions(columns, images).to_pylist()
        for at, ids in (
            enumerate(self._with_carried_columns(self._remove)) if self._lacks_values else ()
        ):
            kept = [
                (c, image.slice(at, 1))
                for c, image in zip(columns, images, strict=True)
                if c.id in ids
            ]
            if len(kept) < len(columns):
                found = (
                    row_conditions([c for c, _ in kept], [image for _, image in kept]).to_pylist()
                    if kept
                    else [b"TRUE"]
                )
                conditions[at] = found[0]
        return conditions

    def _deletes_by_key(self, key: list[Column], arrays: list[pa.Array]) -> Iterator[Step]:
        for rows, statement in deletes_by_key(self.table, key, arrays, once=self._safe):
            yield self._delete_step(rows, statement)

    def loads(self) -> Iterator[Step]:
        """Yield load steps: first rows that take a free place, then those that replace one."""
        for rows, replaces in ((self._write, False), (self._replace, True)):
            yield from self._load_steps(self._new_rows, rows, replaces=replaces)

    def _load_steps(self, images: RowImages, rows: np.ndarray, *, replaces: bool) -> Iterator[Step]:
        if not len(rows):
            return
        keys = tuple(column.name for column in lookup_key_columns(self.table))
        for first in range(0, len(rows), DECODE_BATCH_ROWS):
            started = time.perf_counter()
            index = rows[first : first + DECODE_BATCH_ROWS]
            if self._lines is not None and images is self._new_rows:
                chunks = self._lines.take(index).chunks()
            else:
                columns = {
                    c.name: images[c.name].take(pa.array(index)) for c in self.table.stored_columns
                }
                chunks = format_load(self.table, columns, len(index))
            while (chunk := next(chunks, None)) is not None:
                self._timings.format += time.perf_counter() - started
                detail = LoadDetail(
                    self.first_ts,
                    self._lenient_loads,
                    source=self.source,
                    layout=chunk.layout,
                    replaces=chunk.rows if replaces else 0,
                    keys=keys,
                    warnings=chunk.warnings,
                    keeps_deleted=self._keeps_deleted,
                )
                yield self._step(detail, chunk.rows, chunk.payload)
                started = time.perf_counter()

    def _delete_step(self, rows: int, payload: bytes, listed: ListedRows | None = None) -> Step:
        detail = DeleteDetail(
            self.first_ts,
            self._safe or self._partial,
            source=self.source,
            keeps_deleted=self._keeps_deleted,
            listed=listed,
        )
        return self._step(detail, rows, payload)

    @property
    def _keeps_deleted(self) -> bool:
        return self.table.deletion_mark is not None

    def _step(self, detail: RowsDetail, rows: int, payload: object) -> Step:
        return Step(detail, self.last_ts, self.table.schema_name, self.table.name, rows, 0, payload)


def bytes_steps(table: Table, images: RowImages, after_ts: int, last_ts: int) -> Iterator[Step]:
    """Yield a bytes step if the images have text that isn't utf-8.

    What other character sets than TiDB's own forms of utf-8 would make of bytes isn't known, so
    those of gbk and its like aren't among them.
    """
    columns = tuple(
        column.name
        for column in table.stored_columns
        if column.kind == "text"
        and not column.charset.startswith("gb")
        and invalid_utf8_mask(images[column.name]) is not None
    )
    if columns:
        yield Step(HoldAsBytes(columns, last_ts), after_ts, table.schema_name, table.name)


def changes_of(
    segment: ChangeSet, table: Table, places: np.ndarray, timings: StageTimings
) -> TableChanges:
    """Return the changes at some places of a segment, all of one table. Raises as TableChanges."""
    partial, source = table.id in segment.partial, segment.sources.get(table.id, "")
    # What was in one transaction with the checkpoint is not downstream: it is checked as ever.
    written_again = segment.replayed or segment.contested
    replayed = written_again and not partial and not source and bool(lookup_key_columns(table))
    return TableChanges(
        table,
        RawChanges(
            segment.column("kind", places),
            segment.column("commit_ts", places),
            segment.all_rows,
            places,
        ),
        timings,
        TableContext(
            segment.safe,
            replayed,
            partial,
            source,
            segment.reverted.get(table.id),
            segment.contested,
        ),
    )


def check_merged_tables(tables: Sequence[TableChanges]) -> None:
    """Raise ChangeError if two tables that are merged downstream bring a row with the same key."""
    owners: dict[tuple[str, str, bytes], TableChanges] = {}
    for changes in tables:
        if not changes.source:
            continue
        for key in changes.new_keys():
            place = folded(changes.table.schema_name), folded(changes.table.name), key
            other = owners.setdefault(place, changes)
            if other is not changes:
                raise ChangeError(
                    f"{other.source} and {changes.source}, both routed to"
                    f" {changes.table.full_name}, have each a row with the key"
                    f" {key.decode('utf-8', 'replace')[:300]}, written between commit_ts"
                    f" {min(other.first_ts, changes.first_ts)} and"
                    f" {max(other.last_ts, changes.last_ts)}. Give one of them another target, or"
                    " other keys"
                )
