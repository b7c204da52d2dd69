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
    And,
    ColumnName,
    Comparison,
    Constant,
    Is,
    Like,
    Node,
    Not,
    Operand,
    Or,
    column_names,
    parse_condition,
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


_Node = Callable[[ChangeRows, str], pa.BooleanArray]


class RowCondition:
    """A parsed condition, `text`. Raises ConditionError."""

    def __init__(self, text: str) -> None:
        try:
            node = parse_condition(text)
        except conditions.ConditionError as error:
            raise ConditionError(f"--where: {error}") from None
        self._holds = _compiled(node)
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


def _compiled(node: Node) -> _Node:
    match node:
        case And(left, right):
            return _both(pc.and_kleene, _compiled(left), _compiled(right))
        case Or(left, right):
            return _both(pc.or_kleene, _compiled(left), _compiled(right))
        case Not(part):
            return _not(_compiled(part))
        case Is(operand):
            return _is_null(operand)
        case Like(column, pattern):
            return _like(column, pattern)
        case Comparison("<=>", left, right):
            return _same(left, right)
        case Comparison(sign, left, right):
            return _compared(sign, left, right)


def _both(join: Callable[..., pa.BooleanArray], left: _Node, right: _Node) -> _Node:
    return lambda rows, side: join(left(rows, side), right(rows, side))


def _not(node: _Node) -> _Node:
    return lambda rows, side: pc.invert(node(rows, side))


def _unknown(rows: ChangeRows) -> pa.BooleanArray:
    return pa.nulls(rows.count, pa.bool_())


def _is_null(operand: Operand) -> _Node:
    def holds(rows: ChangeRows, side: str) -> pa.BooleanArray:
        if not isinstance(operand, ColumnName):
            return pa.array(np.full(rows.count, operand.value is None))
        found = _find(operand, rows, side)
        return pa.array(np.ones(rows.count, bool)) if found is None else pc.is_null(found[1])

    return holds


def _same(left: Operand, right: Operand) -> _Node:
    """Compile a comparison that holds for equal values and for two NULLs."""
    equal, nulls = _compared("=", left, right), _both(pc.and_, _is_null(left), _is_null(right))
    return lambda rows, side: pc.or_(
        pc.fill_null(equal(rows, side), fill_value=False), nulls(rows, side)
    )


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
            return _unknown(rows)
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
            return _unknown(rows)
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
            return _unknown(rows)
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
