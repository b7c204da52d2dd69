"""Evaluate a condition's tree in SQL's three-valued logic. How values compare is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.conditions.syntax import (
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
)


class Rows(Protocol):
    """Rows before and after changes."""

    @property
    def count(self) -> int: ...


RowsT = TypeVar("RowsT", bound=Rows)
Holds = Callable[[RowsT, str], pa.BooleanArray]
"""Evaluates for the rows of a side, "old" or "new": booleans, NULL for unknown."""


@dataclass(frozen=True, slots=True)
class Leaves(Generic[RowsT]):
    """What a condition's leaves mean.

    `values` returns a column's of a side, None where there are none: they count as NULL. `compared`
    compares two operands by = <> < <= > or >=.
    """

    values: Callable[[RowsT, ColumnName, str], pa.Array | None]
    compared: Callable[[str, Operand, Operand], Holds[RowsT]]
    like: Callable[[ColumnName, str], Holds[RowsT]]


def compile_condition(node: Node, leaves: Leaves[RowsT]) -> Holds[RowsT]:
    """Return what evaluates a condition. Raises what compiling its leaves does."""
    match node:
        case And(left, right):
            return _joined(pc.and_kleene, *(compile_condition(n, leaves) for n in (left, right)))
        case Or(left, right):
            return _joined(pc.or_kleene, *(compile_condition(n, leaves) for n in (left, right)))
        case Not(part):
            inner = compile_condition(part, leaves)
            return lambda rows, side: pc.invert(inner(rows, side))
        case Is(operand):
            return _is_null(operand, leaves)
        case Like(name, pattern):
            return leaves.like(name, pattern)
        case Comparison("<=>", left, right):
            return _same(left, right, leaves)
        case Comparison(sign, left, right):
            return leaves.compared(sign, left, right)


def unknown(rows: Rows) -> pa.BooleanArray:
    """Return NULL for each row."""
    return pa.nulls(rows.count, pa.bool_())


def _joined(
    join: Callable[..., pa.BooleanArray], left: Holds[RowsT], right: Holds[RowsT]
) -> Holds[RowsT]:
    return lambda rows, side: join(left(rows, side), right(rows, side))


def _is_null(operand: Operand, leaves: Leaves[RowsT]) -> Holds[RowsT]:
    def holds(rows: RowsT, side: str) -> pa.BooleanArray:
        if isinstance(operand, Constant):
            return pa.array(np.full(rows.count, operand.value is None))
        values = leaves.values(rows, operand, side)
        return pa.array(np.ones(rows.count, bool)) if values is None else pc.is_null(values)

    return holds


def _same(left: Operand, right: Operand, leaves: Leaves[RowsT]) -> Holds[RowsT]:
    """Compile a comparison that holds for equal values and for two NULLs."""
    equal = leaves.compared("=", left, right)
    nulls = _joined(pc.and_, _is_null(left, leaves), _is_null(right, leaves))
    return lambda rows, side: pc.or_(
        pc.fill_null(equal(rows, side), fill_value=False), nulls(rows, side)
    )
