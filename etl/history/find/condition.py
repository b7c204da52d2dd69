"""Evaluate conditions over the columns of row changes.

They are evaluated here: nothing of them reaches a server.

    amount > 100 AND status IN ('paid', 'sent')
    old.status = 'paid' AND new.status IS NULL
    old.balance <> new.balance
    note LIKE '%refund%' OR at BETWEEN '2026-11-22 09:00:00' AND '2026-11-22 10:00:00'

A change fits if the row as it was before, or as it was after, does; `old.` and `new.` select one of
the two images. Of an insert everything before is NULL, of a delete everything after. Comparisons
with NULL are unknown, as in SQL. Text is compared by its code points, whatever collation the column
has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes import conditions
from sluice.etl.changes.conditions import (
    ColumnName,
    Constant,
    Holds,
    Leaves,
    Operand,
    column_names,
    compile_condition,
    parse_condition,
    unknown,
)
from sluice.etl.history.errors import ConditionError
from sluice.etl.history.find._values import comparable, comparison_family, constant_for
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_COMPARATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}
Images = Mapping[str, pa.Array]
"""Columns by name."""


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Row changes of one kind in one table, as it was then.

    They are `old` and `new` images, None where the kind has none.
    """

    table: Table
    count: int
    old: Images | None
    new: Images | None


def _find(operand: ColumnName, rows: ChangeRows, side: str) -> tuple[Column, pa.Array] | None:
    images = rows.old if (operand.side or side) == "old" else rows.new
    column = next((c for c in rows.table.stored_columns if folded(c.name) == operand.name), None)
    return None if column is None or images is None else (column, images[column.name])


def _values(rows: ChangeRows, operand: ColumnName, side: str) -> pa.Array | None:
    found = _find(operand, rows, side)
    return None if found is None else found[1]


_Node = Holds[ChangeRows]


class RowCondition:
    """A parsed condition, `text`. Raises ConditionError."""

    def __init__(self, text: str) -> None:
        try:
            node = parse_condition(text)
        except conditions.ConditionError as error:
            raise ConditionError(f"--where: {error}") from None
        self._holds = compile_condition(node, Leaves(_values, _compared, _like))
        self.columns: frozenset[str] = frozenset(one.name for one in column_names(node))
        """The names of its columns, in lower case."""

    def fits(self, rows: ChangeRows) -> np.ndarray:
        """Return which changes fit (bool, one a change).

        A column that the table doesn't have there is NULL. Raises ConditionError for a constant
        that is no value of its column.
        """
        found = np.zeros(rows.count, bool)
        for side, images in (("old", rows.old), ("new", rows.new)):
            if images is not None:
                found |= np.asarray(pc.fill_null(self._holds(rows, side), fill_value=False))
        return found


def _compared(sign: str, left: Operand, right: Operand) -> _Node:
    compare = _COMPARATORS[sign]
    if isinstance(left, ColumnName) and isinstance(right, ColumnName):
        return _two_columns(compare, left, right)
    if isinstance(left, ColumnName):
        return _with_constant(left, right, compare)
    if isinstance(right, ColumnName):
        return _with_constant(right, left, lambda value, constant: compare(constant, value))
    raise AssertionError("the parser wants a column in each comparison")


def _with_constant(
    name: ColumnName, operand: Operand, compare: Callable[[Any, Any], bool]
) -> _Node:
    assert isinstance(operand, Constant)
    constant = operand.value

    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        found = _find(name, rows, side)
        if found is None or constant is None:
            return unknown(rows)
        wanted = constant_for(found[0], constant)
        return _map_distinct(found, lambda value: compare(value, wanted))

    return holds


def _map_distinct(found: tuple[Column, pa.Array], judge: Callable[[Any], bool]) -> pa.BooleanArray:
    """Return the result of `judge` for each value; equal values are judged once."""
    column, array = found
    coded = array.dictionary_encode()
    judged = [
        None if value is None else judge(value) for value in comparable(column, coded.dictionary)
    ]
    return pa.array(judged, pa.bool_()).take(coded.indices)


def _two_columns(compare: Callable[[Any, Any], bool], left: ColumnName, right: ColumnName) -> _Node:
    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        a, b = _find(left, rows, side), _find(right, rows, side)
        if a is None or b is None:
            return unknown(rows)
        if comparison_family(a[0]) != comparison_family(b[0]):
            raise ConditionError(
                f"--where: {a[0].name} ({a[0].kind}) and {b[0].name} ({b[0].kind}) can't be"
                " compared with each other"
            )
        pairs = zip(comparable(*a), comparable(*b), strict=True)
        return pa.array(
            [None if x is None or y is None else compare(x, y) for x, y in pairs], pa.bool_()
        )

    return holds


def _like(left: ColumnName, pattern: str) -> _Node:
    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        found = _find(left, rows, side)
        if found is None:
            return unknown(rows)
        if comparison_family(found[0]) not in ("text", "bytes"):
            raise ConditionError(f"--where: LIKE is for text, {found[0].name} is {found[0].kind}")
        column, array = found
        coded = array.dictionary_encode()
        try:
            matched = conditions.match_like(pattern, comparable(column, coded.dictionary))
        except conditions.ConditionError as error:
            raise ConditionError(f"--where: {error}") from None
        return matched.take(coded.indices)

    return holds
