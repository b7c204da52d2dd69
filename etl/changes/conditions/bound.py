"""Evaluate a condition over a table's columns exactly as the upstream's SQL evaluates it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.conditions.comparison_keys import (
    column_keys,
    compare,
    comparison,
    weighed,
)
from sluice.etl.changes.conditions.evaluation import Holds, Leaves, compile_condition, unknown
from sluice.etl.changes.conditions.like_pattern import match_like
from sluice.etl.changes.conditions.syntax import (
    And,
    ColumnName,
    Comparison,
    ConditionError,
    Constant,
    Is,
    Like,
    Node,
    Not,
    Operand,
    Or,
    column_names,
)
from sluice.etl.changes.formats.sql_text import literal, quote_name
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Images(Protocol):
    """Columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class ImagePair:
    """Rows before and after changes of one kind, None where the kind has none."""

    count: int
    old: Images | None
    new: Images | None


_Holds = Holds[ImagePair]


class BoundCondition:
    """A condition over a table's columns, as they are decoded by `sluice.tidb.rows`.

    It names them as the upstream does, also where a rule gives them other names.
    Raises ConditionError if the table lacks a column, or compares it in a way that isn't known.
    """

    def __init__(self, node: Node, table: Table) -> None:
        self._node = node
        self._table = table
        self._known = {folded(c.source_name): c for c in table.stored_columns if c.public}
        self.columns: tuple[Column, ...] = tuple(
            dict.fromkeys(self._column(name) for name in column_names(node))
        )
        """The columns that the condition names."""
        self.names_sides = any(name.side for name in column_names(node))
        """True if it tells rows before a change from those after it."""
        self._holds = compile_condition(node, Leaves(self._values, self._compared, self._like))

    def holds(self, images: ImagePair, side: str) -> np.ndarray:
        """Return for which rows of a side ("old" or "new") it is true: not false, not unknown."""
        found = self._holds(images, side)
        return np.asarray(pc.fill_null(found, fill_value=False), bool)

    def sql(self) -> str:
        """Return the condition as SQL, in parentheses. Raises ValueError if it names sides."""
        if self.names_sides:
            raise ValueError("SQL knows no rows before and after a change")
        return self._sql(self._node)

    def _column(self, name: ColumnName) -> Column:
        try:
            return self._known[name.name]
        except KeyError:
            columns = self._table.columns
            there = next((c for c in columns if folded(c.source_name) == name.name), None)
            why = (
                "has no column"
                if there is None or not there.public
                else "computes, and does not store, the column"
            )
            raise ConditionError(f"{self._table.full_name} {why} {name.name}") from None

    def _values(self, images: ImagePair, name: ColumnName, side: str) -> pa.Array | None:
        found = images.old if (name.side or side) == "old" else images.new
        return None if found is None else found[self._column(name).name]

    def _compared(self, sign: str, left: Operand, right: Operand) -> _Holds:
        if isinstance(left, ColumnName) and isinstance(right, ColumnName):
            return self._two_columns(sign, left, right)
        if isinstance(right, ColumnName):
            left, right, sign = right, left, _MIRRORED.get(sign, sign)
        assert isinstance(left, ColumnName)
        assert isinstance(right, Constant)
        if right.value is None:
            return lambda images, _: unknown(images)
        return self._of_values(left, comparison(self._column(left), sign, right))

    def _of_values(self, name: ColumnName, judge: Callable[[pa.Array], pa.Array]) -> _Holds:
        def holds(images: ImagePair, side: str) -> pa.Array:
            found = self._values(images, name, side)
            return unknown(images) if found is None else judge(found)

        return holds

    def _two_columns(self, sign: str, left: ColumnName, right: ColumnName) -> _Holds:
        columns = self._column(left), self._column(right)
        if _compared_as(columns[0]) != _compared_as(columns[1]):
            raise ConditionError(
                f"{columns[0].name} and {columns[1].name} are of different types or collations:"
                " SQL would convert one of them"
            )
        scale = max(c.decimal for c in columns) if columns[0].kind == "decimal" else None
        one, other = (column_keys(column, scale) for column in columns)

        def holds(images: ImagePair, side: str) -> pa.Array:
            a, b = (self._values(images, name, side) for name in (left, right))
            if a is None or b is None:
                return unknown(images)
            return compare(sign, one(a), other(b))

        return holds

    def _like(self, name: ColumnName, pattern: str) -> _Holds:
        column = self._column(name)
        if column.kind != "text":
            raise ConditionError(f"LIKE is for text, {column.name} is {column.kind}")
        if "\\" in pattern.replace("\\%", "").replace("\\_", ""):
            raise ConditionError(f"LIKE {pattern!r}: a backslash stands only before % and _")
        wanted = weighed(column, pa.array([pattern], pa.large_string()))[0]

        def judge(array: pa.Array) -> pa.Array:
            coded = array.cast(pa.large_binary()).dictionary_encode()
            matched = match_like(str(wanted), weighed(column, coded.dictionary))
            return matched.take(coded.indices)

        return self._of_values(name, judge)

    def _sql(self, node: Node) -> str:
        match node:
            case And(left, right):
                return f"({self._sql(left)} AND {self._sql(right)})"
            case Or(left, right):
                return f"({self._sql(left)} OR {self._sql(right)})"
            case Not(part):
                return f"(NOT {self._sql(part)})"
            case Is(operand):
                return f"({self._operand_sql(operand)} IS NULL)"
            case Like(name, pattern):
                return f"({self._operand_sql(name)} LIKE {literal(pattern)})"
            case Comparison(sign, left, right):
                return f"({self._operand_sql(left)} {sign} {self._operand_sql(right)})"

    def _operand_sql(self, operand: Operand) -> str:
        if isinstance(operand, ColumnName):
            return quote_name(self._column(operand).source_name)
        return operand.text if isinstance(operand.value, Decimal) else literal(operand.value)


def _compared_as(column: Column) -> tuple[object, ...]:
    """Return what two columns have in common that are compared without a conversion."""
    kind = "double" if column.kind == "float" else column.kind
    match kind:
        case "int":
            return kind, column.unsigned
        case "text":
            return kind, column.collate.lower()
        case "datetime" | "timestamp":
            return kind, column.fsp
        case "enum" | "set":
            return kind, column.name  # only with itself
    return (kind,)
