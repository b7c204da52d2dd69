"""A table's key cut into ranges, and a range as a condition that TiDB plans as a range scan.

Row comparison, `(a, b) > (1, 2)`, is planned as a scan of the whole table: conditions are written
out, column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from sluice.etl.changes.formats import sql_text
from sluice.tidb.codec.row import ROWID_NAME
from sluice.tidb.schema import WHOLE_COLUMN, Column, Table

SPLITTABLE_KINDS = ("int", "year", "decimal", "text", "binary", "date", "datetime", "timestamp")
"""Kinds whose printed values are literals that compare as the key is ordered."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key that identifies rows. `kind`: as `sluice.tidb.schema.Column.kind`."""

    name: str
    kind: str
    unsigned: bool = False

    @classmethod
    def from_column(cls, column: Column) -> Self:
        """Return a column of a table."""
        return cls(column.name, column.kind, column.unsigned)

    @property
    def quoted(self) -> str:
        """Return the name in SQL."""
        return sql_text.quote_name(self.name)

    def literal(self, raw: bytes) -> str:
        """Return a value as it was printed, in SQL.

        Raises UnicodeDecodeError for text that isn't utf-8.
        """
        if self.kind in ("int", "year", "decimal"):
            return raw.decode("ascii")
        return sql_text.literal(raw if self.kind == "binary" else raw.decode("utf-8"))


def key_columns(table: Table) -> list[KeyColumn]:
    """Return the columns in whose order TiDB keeps the rows, as many as ranges can be cut by.

    None where that can't be.
    """
    if table.handle_kind == "heap":
        return [KeyColumn(ROWID_NAME, "int")]
    if table.handle_column is not None:
        return [KeyColumn.from_column(table.handle_column)]
    index = table.primary_index
    found: list[KeyColumn] = []
    for _, offset, length in index.columns if index is not None else ():
        column = table.columns[offset]
        if column.names_source:
            continue
        if length != WHOLE_COLUMN or column.kind not in SPLITTABLE_KINDS or column.generated:
            break
        found.append(KeyColumn.from_column(column))
    return found


def in_range(
    key: Sequence[KeyColumn], low: Sequence[str] | None, high: Sequence[str] | None
) -> str:
    """Return the condition `low` <= key < `high` over literals; None: no limit."""
    parts = [_past_bound(key, low, ">") if low else "", _past_bound(key, high, "<") if high else ""]
    return " AND ".join(part for part in parts if part) or "TRUE"


def _past_bound(key: Sequence[KeyColumn], bound: Sequence[str], mark: str) -> str:
    """Return the condition of rows past the bound; with `>` also at it."""
    column, literal = key[0].quoted, bound[0]
    if len(bound) == 1:
        return f"{column} {mark}{'=' if mark == '>' else ''} {literal}"
    return (
        f"({column} {mark} {literal} OR ({column} = {literal} AND"
        f" {_past_bound(key[1:], bound[1:], mark)}))"
    )


def refined_bounds(bounds: Sequence[int], low: int, high: int, parts: int) -> list[int]:
    """Cut each range between `bounds` inside of (low, high] into `parts` of even width.

    For keys that are numbers: of how many rows there are nothing is known.
    """
    edges = [low, *(bound for bound in bounds if low < bound <= high), high + 1]
    found: list[int] = []
    for begin, end in pairwise(edges):
        steps = min(parts, end - begin)
        found += [begin + (end - begin) * n // steps for n in range(steps)]
    return found[1:]
