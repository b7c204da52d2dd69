"""Expressions become functions of a row. NULL is None, and comes out of comparisons as in SQL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from typing import Any

from sluice.devstack.tidb.sql import values
from sluice.devstack.tidb.sql.errors import SQLError
from sluice.devstack.tidb.sql.functions import FUNCTIONS
from sluice.devstack.tidb.sql.parse import Node
from sluice.etl.changes import server_errors
from sluice.tidb.schema import Column

Row = Sequence[Any]
Evaluator = Callable[[Row], Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """The meaning of names in an expression.

    They are columns of the rows by lower-case name, variables, and functions of the session.
    """

    columns: Mapping[str, tuple[int, Column]]
    variable: Callable[[str], Any]
    functions: Mapping[str, Callable[..., Any]]

    def column(self, name: str) -> tuple[int, Column]:
        """Return where a column's value is in a row. SQLError UNKNOWN_COLUMN."""
        found = self.columns.get(name.lower())
        if found is None:
            raise SQLError(server_errors.UNKNOWN_COLUMN, f"Unknown column '{name}' in 'field list'")
        return found


def compile_expression(node: Node, scope: Scope) -> Evaluator:
    """Return the expression as a function. SQLError for what is unknown."""
    match node:
        case ("value", value):
            return lambda row: value
        case ("column", name):
            at = scope.column(name)[0]
            return lambda row: row[at]
        case ("variable", name):
            known = scope.variable(name)
            return lambda row: known
        case ("call", name, arguments):
            return _call(name, [compile_expression(a, scope) for a in arguments], scope)
        case ("and", a, b):
            return _and(compile_expression(a, scope), compile_expression(b, scope))
        case ("or", a, b):
            return _or(compile_expression(a, scope), compile_expression(b, scope))
        case ("not", inner):
            value_of = compile_expression(inner, scope)
            return lambda row: None if (v := value_of(row)) is None else int(not v)
        case ("null", inner, wanted):
            value_of = compile_expression(inner, scope)
            return lambda row: int((value_of(row) is None) == wanted)
        case ("compare", mark, a, b):
            return _compare(mark, a, b, scope)
        case ("in", left, items, wanted):
            return _in(left, items, scope, wanted=wanted)
        case ("like", left, pattern, wanted):
            return _like(
                compile_expression(left, scope), compile_expression(pattern, scope), wanted=wanted
            )
        case ("arith", mark, a, b):
            return _arithmetic(mark, compile_expression(a, scope), compile_expression(b, scope))
    raise SQLError(
        server_errors.UNKNOWN_ERROR,
        f"the stand-in does not know this kind of expression: {node[0]}",
    )


def is_true(value: Any) -> bool:
    """Return whether WHERE takes the value."""
    return bool(values.as_number(value)) if value is not None else False


def _call(name: str, arguments: list[Evaluator], scope: Scope) -> Evaluator:
    function = scope.functions.get(name) or FUNCTIONS.get(name)
    if function is None:
        raise SQLError(
            server_errors.UNKNOWN_FUNCTION,
            f"FUNCTION {name} does not exist (the stand-in knows few)",
        )
    return lambda row: function(*(argument(row) for argument in arguments))


def _and(a: Evaluator, b: Evaluator) -> Evaluator:
    def evaluate(row: Row) -> Any:
        left = a(row)
        if left is not None and not is_true(left):
            return 0
        right = b(row)
        if right is not None and not is_true(right):
            return 0
        return None if left is None or right is None else 1

    return evaluate


def _or(a: Evaluator, b: Evaluator) -> Evaluator:
    def evaluate(row: Row) -> Any:
        left = a(row)
        if is_true(left):
            return 1
        right = b(row)
        if is_true(right):
            return 1
        return None if left is None or right is None else 0

    return evaluate


def _compare(mark: str, a: Node, b: Node, scope: Scope) -> Evaluator:
    if a[0] == "row" and b[0] == "row":
        return _compare_rows(mark, a[1], b[1], scope)
    order = _order(a, b, scope)
    if mark == "<=>":
        return lambda row: int(order(row) in (0, _BOTH_NULL))
    test = _TESTS[mark]
    return lambda row: None if (o := order(row)) in _NULLS else int(test(o))


DIGITS = 81
"""TiDB computes DECIMALs with nine words of nine digits."""
_TESTS: dict[str, Callable[[int], bool]] = {
    "=": lambda o: o == 0,
    "<": lambda o: o < 0,
    "<=": lambda o: o <= 0,
    ">": lambda o: o > 0,
    ">=": lambda o: o >= 0,
    "<>": lambda o: o != 0,
    "!=": lambda o: o != 0,
}
_ONE_NULL, _BOTH_NULL = _NULLS = (2, 3)


def _order(a: Node, b: Node, scope: Scope) -> Callable[[Row], int]:
    """Return -1, 0 or 1 as `a` is less than, equal to or greater than `b`, or one of _NULLS."""
    left, right = compile_expression(a, scope), compile_expression(b, scope)
    column = next((scope.column(n[1])[1] for n in (a, b) if n[0] == "column"), None)
    convert = values.comparer(column) if column is not None else None

    def order(row: Row) -> int:
        x, y = left(row), right(row)
        if x is None or y is None:
            return _BOTH_NULL if x is y else _ONE_NULL
        if convert is not None:
            x, y = convert(x), convert(y)
        else:
            x, y = _alike(x, y)
        return int(x > y) - int(x < y)

    return order


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    if isinstance(x, str | bytes) and isinstance(y, str | bytes):
        return values.collation_key("utf8mb4_bin", x), values.collation_key("utf8mb4_bin", y)
    return values.as_number(x), values.as_number(y)


def _compare_rows(mark: str, a: list[Node], b: list[Node], scope: Scope) -> Evaluator:
    orders = [_order(x, y, scope) for x, y in zip(a, b, strict=True)]
    test = _TESTS[mark]

    def evaluate(row: Row) -> Any:
        for order in orders:
            found = order(row)
            if found in _NULLS:
                return None
            if found:
                return int(test(found))
        return int(test(0))

    return evaluate


def _in(left: Node, items: list[Node], scope: Scope, *, wanted: bool) -> Evaluator:
    tests = [_compare("=", left, item, scope) for item in items]

    def evaluate(row: Row) -> Any:
        found = [test(row) for test in tests]
        if any(found):
            return int(wanted)
        return None if None in found else int(not wanted)

    return evaluate


def _like(left: Evaluator, pattern: Evaluator, *, wanted: bool) -> Evaluator:
    def evaluate(row: Row) -> Any:
        value, like = left(row), pattern(row)
        if value is None or like is None:
            return None
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        expression = "".join(
            {"%": ".*", "_": "."}.get(part, re.escape(part[-1]))
            for part in re.findall(r"\\.|.", str(like), re.S)
        )
        return int((re.fullmatch(expression, text, re.S | re.I) is not None) == wanted)

    return evaluate


def _remainder(x: Any, y: Any) -> Any:
    """Return the remainder with the dividend's sign.

    Python's integers and floats give it that of the divisor.
    """
    if isinstance(x, float):
        return math.fmod(x, y)
    rest = abs(x) % abs(y)
    return -rest if x < 0 else rest


def _arithmetic(mark: str, a: Evaluator, b: Evaluator) -> Evaluator:
    def evaluate(row: Row) -> Any:
        x, y = values.as_number(a(row)), values.as_number(b(row))
        if x is None or y is None or (mark in "/%" and not y):
            return None
        if isinstance(x, float) or isinstance(y, float):
            x, y = float(x), float(y)
        with localcontext(prec=DIGITS):
            match mark:
                case "+":
                    return x + y
                case "-":
                    return x - y
                case "*":
                    return x * y
                case "%":
                    return _remainder(x, y)
            return x / y

    return evaluate
