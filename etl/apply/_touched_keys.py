"""List which keys the changes of a window touched, as values that are equal where keys are.

Two relay logs are compared by them, so nothing here depends on what one cluster alone knows, such
as table ids and hidden row ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.changes.channels import Channels
from sluice.etl.changes.conditions import ConditionError
from sluice.etl.changes.conditions.comparison_keys import Keys, column_keys
from sluice.etl.changes.planning import find_marked
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import Filter, is_internal_table
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.changes.write_plans.raw_changes import RawChanges, images_of
from sluice.etl.downstream.sinks import ApplyError
from sluice.relay import DELETE, INSERT, WindowRecord, read_parts
from sluice.tidb.folded import folded
from sluice.tidb.rows import DecodeStats
from sluice.tidb.schema import Table

Key = tuple[Any, ...]
"""A row's key: a value of each column."""


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """Changes of one table (PART_SCHEMA), in order, and the keys of their old and new rows."""

    table: Table
    changes: pa.Table

    @property
    def name(self) -> tuple[str, str]:
        """Return schema and name, equal for the same table of two clusters."""
        return folded(self.table.schema_name), folded(self.table.name)

    def comparable(self) -> dict[str, Keys]:
        """Return what makes values of the key's columns comparable, by name.

        Raises ApplyError for a table whose rows have no comparable key.
        """
        columns = lookup_key_columns(self.table)
        if not columns:
            raise _undecidable(self.table, "it has no key")
        try:
            return {column.name: column_keys(column) for column in columns}
        except ConditionError as error:
            raise _undecidable(self.table, str(error)) from error

    def row_keys(self) -> tuple[list[Key | None], list[Key | None]]:
        """Return the old and the new key of each change, None where there is no such row.

        Raises ApplyError for a table whose rows have no comparable key, and the row codec's errors.
        """
        columns, comparable = lookup_key_columns(self.table), self.comparable()
        raw = RawChanges.from_table(self.changes)
        old, new = images_of(self.table, raw, DecodeStats())

        def aligned(images: Any, places: np.ndarray) -> list[Key | None]:
            found: list[Key | None] = [None] * len(raw.kinds)
            values = [comparable[c.name](images[c.name]).to_pylist() for c in columns]
            for place, key in zip(places.tolist(), zip(*values, strict=True), strict=True):
                found[place] = key
            return found

        before, after = np.flatnonzero(raw.kinds != INSERT), np.flatnonzero(raw.kinds != DELETE)
        return (
            aligned(old, before) if len(before) else [None] * len(raw.kinds),
            aligned(new, after) if len(after) else [None] * len(raw.kinds),
        )


def _undecidable(table: Table, why: str) -> ApplyError:
    return ApplyError(
        f"table {table.full_name} is changed on both sides, and whether two changes are of the same"
        f" row isn't known: {why}",
        hint=f'filter it out: [filter] ignore-table = [{{ db-name = "{table.schema_name}",'
        f' tbl-name = "{table.name}" }}]',
    )


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Read which keys windows of the relay log at `url` touched.

    Not of tables that `filters` leave out, nor of transactions that have the mark of `channel`.
    """

    url: str
    filters: Filter
    channel: int

    def read(self, window: WindowRecord, after: int, through: int) -> Iterator[TouchedKeys]:
        """Yield what a window's changes in (after, through] (TSO) touched, a table at a time.

        Raises ChangeError for another channel's mark, relay and row codec errors.
        """
        if not window.changes:
            return
        schema, changes = RecordedSchema.from_window(window), read_parts(self.url, window.parts)
        marked = find_marked(changes, schema, Channels.of_pair(self.channel))
        if marked is not None:
            changes = changes.filter(pa.array(~marked.left_out))
        tables = {i: table for i, table in schema.tables.items() if table is not None}
        at = after
        for ddl in schema.ddls:
            yield from self._by_table(_between(changes, at, min(ddl.commit_ts, through)), tables)
            at = max(at, ddl.commit_ts)
            tables |= {i: table for i, table in ddl.effect.tables.items() if table is not None}
        yield from self._by_table(_between(changes, at, through), tables)

    def _by_table(self, changes: pa.Table, tables: dict[int, Table]) -> Iterator[TouchedKeys]:
        ids = changes["table_id"].to_numpy()
        for table_id in np.unique(ids).tolist():
            table = tables.get(table_id)
            if (
                table is not None
                and not is_internal_table(table_id)
                and self.filters.wants_table(table.schema_name, table.name)
            ):
                yield TouchedKeys(table, changes.take(pa.array(np.flatnonzero(ids == table_id))))


def _between(changes: pa.Table, after: int, through: int) -> pa.Table:
    commit_ts = changes["commit_ts"].to_numpy()
    first, end = np.searchsorted(commit_ts, [after, through], side="right")
    return changes.slice(int(first), max(0, int(end - first)))
