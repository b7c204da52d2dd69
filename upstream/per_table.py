"""What follows from a table's definition, kept for the next time: windows bring the same tables again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from upstream.schema import Table

T = TypeVar("T")

_MOST_COLUMNS = 50_000
"""Of the tables that are remembered."""


class PerTable(Generic[T]):
    """A function of a table that remembers its answer for each table's last definition."""

    def __init__(self, make: Callable[[Table], T]) -> None:
        self._make = make
        self._made: dict[int, tuple[Table, T]] = {}
        self._columns = 0

    def __call__(self, table: Table) -> T:
        """Raises what the function does."""
        known = self._made.get(table.id)
        if known is not None and known[0] is table:
            return known[1]
        made = known[1] if known is not None and known[0] == table else self._make(table)
        if known is None:
            self._columns += len(table.columns)
        if self._columns > _MOST_COLUMNS:
            self._made.clear()
            self._columns = len(table.columns)
        self._made[table.id] = table, made
        return made
