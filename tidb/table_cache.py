"""Cache what follows from a table's definition: windows bring the same tables again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sluice.tidb.schema import Table

T = TypeVar("T")

_MAX_CACHED_COLUMNS = 100_000
"""Columns of the cached tables, in total; those of equal tables count once."""


class TableCache(Generic[T]):
    """A function of a table that remembers its answer for each table's last definition.

    It must not look at what tables are called, nor at their ids: tables that are alike besides have
    one answer.
    """

    def __init__(self, make: Callable[[Table], T]) -> None:
        self._make = make
        self._made: dict[int, tuple[Table, T]] = {}
        self._alike: dict[tuple[Any, ...], tuple[Table, T]] = {}
        self._columns = 0

    def __call__(self, table: Table) -> T:
        """Return the function's result for a table. Raises what the function does."""
        known = self._made.get(table.id)
        if known is not None and known[0] is table:
            return known[1]
        made = known[1] if known is not None and known[0] == table else self._made_for_alike(table)
        if known is None:
            self._columns += 1
        if self._columns > _MAX_CACHED_COLUMNS:
            self._made.clear()
            self._alike.clear()
            self._columns = 1 + len(table.columns)
        self._made[table.id] = table, made
        return made

    def _made_for_alike(self, table: Table) -> T:
        form = table.form
        if form is None:
            self._columns += len(table.columns)
            return self._make(table)
        known = self._alike.get(form)  # the table in there keeps what the form is of alive
        if known is None:
            known = self._alike[form] = table, self._make(table)
            self._columns += len(table.columns)
        return known[1]
