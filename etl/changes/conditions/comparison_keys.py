"""Turn a column's values and constants into keys that compare as the upstream compares them.

What Arrow can't compare exactly as TiDB does is refused by name: numbers in quotes, which SQL takes
for doubles; collations other than the binary ones and general_ci; dates that are none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.conditions.general_ci import weigh
from sluice.etl.changes.conditions.syntax import ConditionError, Constant
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.codec.times import parse_duration
from sluice.tidb.schema import Column

_DECIMAL_DIGITS = 76
"""Digits of Arrow's widest decimal."""
_GENERAL_CI = {"utf8mb4_general_ci", "utf8_general_ci", "utf8mb3_general_ci"}
_UNPADDED = {"binary", "utf8mb4_0900_bin"}
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?")
_DURATION = re.compile(r"(-?\d{2,3}:\d\d:\d\d)(?:\.(\d{1,6}))?")
_MIN_YEAR, _MAX_YEAR = 1901, 2155
_EQUALITIES = ("=", "<>", "<=>")

Keys = Callable[[pa.Array], pa.Array]
"""Turns decoded values (`sluice.tidb.rows`) into keys; NULLs stay."""


def column_keys(column: Column, scale: int | None = None) -> Keys:
    """Return what makes a column's keys; `scale`: fraction digits of a DECIMAL's.

    Raises ConditionError for a column that can't be compared.
    """
    match column.kind:
        case "int" | "year" | "bit" | "date" | "datetime" | "timestamp" | "double":
            return lambda array: array
        case "float":
            return lambda array: array.cast(pa.float64())
        case "decimal":
            return _decimal_keys(column, column.decimal if scale is None else scale)
        case "time":
            return _duration_keys
        case "text" | "enum":
            return text_keys(column)
        case "binary":
            return lambda array: array.cast(pa.large_binary())
    raise ConditionError(f"{column.name} is {column.kind}: it can only be compared by IS NULL")


def comparison(column: Column, sign: str, constant: Constant) -> Callable[[pa.Array], pa.Array]:
    """Return what compares a column's values with a constant: booleans, NULL for NULL.

    Raises ConditionError for a constant that is no value of the column.
    """
    if column.kind in ("int", "year", "bit"):
        return _compared_numbers(column, sign, _number(column, constant))
    if column.kind == "enum" and sign not in _EQUALITIES:
        raise ConditionError(f"{column.name} is an ENUM: use = <> IN, as its order is its numbers'")
    scale = None
    key: Any
    match column.kind:
        case "decimal":
            number = _number(column, constant)
            scale = max(column.decimal, -int(number.as_tuple().exponent), 0)
            key = pa.scalar(number, pa.decimal256(_DECIMAL_DIGITS, scale))
        case "float" | "double":
            key = pa.scalar(float(_number(column, constant, is_exact=False)), pa.float64())
        case "date" | "datetime" | "timestamp":
            key = pa.scalar(_moment(column, constant), pa.large_string())
        case "time":
            key = pa.scalar(_duration(column, constant), pa.int64())
        case "binary":
            value = constant.value
            raw = value if isinstance(value, bytes) else _text(column, constant).encode()
            key = pa.scalar(raw, pa.large_binary())
        case _:
            text = pa.array([_text(column, constant)], pa.large_string())
            key = column_keys(column)(text)[0]
    keys = column_keys(column, scale)
    return lambda array: compare(sign, keys(array), key)


def compare(sign: str, left: pa.Array, right: pa.Array | pa.Scalar) -> pa.Array:
    """Compare keys by = <> < <= > or >=."""
    return _COMPARE[sign](left, right)


_COMPARE: dict[str, Callable[[Any, Any], pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def text_keys(column: Column) -> Keys:
    """Return what makes a text column's keys by its collation. Raises ConditionError."""
    collation = column.collate.lower()
    if column.charset.lower().startswith("gb"):
        raise ConditionError(f"{column.name} has the character set {column.charset}: {_NO_ORDER}")
    if collation in _GENERAL_CI:
        return _general_ci_keys
    if collation in _UNPADDED or collation.endswith("_nopad_bin"):
        return lambda array: array.cast(pa.large_binary())
    if collation.endswith("_bin"):
        return lambda array: pc.ascii_rtrim(array, " ").cast(pa.large_binary())
    raise ConditionError(f"{column.name} has the collation {column.collate or '?'}: {_NO_ORDER}")


_NO_ORDER = "a condition compares only binary collations and general_ci as TiDB does"


def weighed(column: Column, array: pa.Array) -> list[str | bytes | None]:
    """Return texts as LIKE compares them under the column's collation."""
    text_keys(column)
    values = array.cast(pa.large_binary()).to_pylist()
    fold = weigh if column.collate.lower() in _GENERAL_CI else str
    return [None if value is None else _decoded(value, fold) for value in values]


def _decoded(value: bytes, fold: Callable[[str], str]) -> str | bytes:
    try:
        return fold(value.decode())
    except UnicodeDecodeError:
        return value


def _general_ci_keys(array: pa.Array) -> pa.Array:
    if pc.all(pc.string_is_ascii(array), min_count=0).as_py():
        return pc.ascii_upper(pc.ascii_rtrim(array, " ")).cast(pa.large_binary())
    coded = array.cast(pa.large_binary()).dictionary_encode()
    weights = [
        None if value is None else weigh(value.decode("utf-8", "replace").rstrip(" ")).encode()
        for value in coded.dictionary.to_pylist()
    ]
    return pa.array(weights, pa.large_binary()).take(coded.indices)


def _decimal_keys(column: Column, scale: int) -> Keys:
    if max(0, column.flen - column.decimal) + scale > _DECIMAL_DIGITS:
        raise ConditionError(
            f"{column.name}: the constant has more digits behind the point than are compared"
        )
    kind = pa.decimal256(_DECIMAL_DIGITS, scale)
    return lambda array: array.cast(kind)


def _duration_keys(array: pa.Array) -> pa.Array:
    coded = array.dictionary_encode()
    values = [
        None if text is None else parse_duration(text) for text in coded.dictionary.to_pylist()
    ]
    return pa.array(values, pa.int64()).take(coded.indices)


def _compared_numbers(column: Column, sign: str, number: Decimal) -> Callable[[pa.Array], pa.Array]:
    whole = math.floor(number)
    if number != whole:
        if sign in ("=", "<>"):
            return _always(sign == "<>")
        sign, whole = ("<=", whole) if sign in ("<", "<=") else (">=", whole + 1)
    kind = arrow_type(column)
    low, high = (0, 2**64 - 1) if kind == pa.uint64() else (-(2**63), 2**63 - 1)
    if not low <= whole <= high:
        return _always(sign == "<>" or sign in (("<", "<=") if whole > high else (">", ">=")))
    key = pa.scalar(whole, kind)
    return lambda array: compare(sign, array, key)


def _always(holds: bool) -> Callable[[pa.Array], pa.Array]:  # noqa: FBT001 the outcome
    return lambda array: pc.if_else(array.is_valid(), holds, pa.scalar(None, pa.bool_()))


def _number(column: Column, constant: Constant, *, is_exact: bool = True) -> Decimal:
    value = constant.value
    if not isinstance(value, Decimal):
        raise ConditionError(
            f"{column.name} is {column.kind}: {constant.text} is no number. SQL would compare both"
            " as doubles; write a number without quotes"
        )
    if is_exact and constant.is_float:
        raise ConditionError(
            f"{column.name} is {column.kind}: SQL would compare it with {constant.text} as a"
            " double; write the number without an exponent"
        )
    if column.kind == "year" and value and not _MIN_YEAR <= value <= _MAX_YEAR:
        raise ConditionError(f"{column.name} is a YEAR: {constant.text} is none, write four digits")
    return value


def _text(column: Column, constant: Constant) -> str:
    if not isinstance(constant.value, str):
        raise ConditionError(
            f"{column.name} is {column.kind}: write {constant.text} as text in quotes"
        )
    if "\\" in constant.value:
        raise ConditionError(
            f"{constant.text}: a backslash in quotes is read in different ways by servers"
        )
    return constant.value


def _moment(column: Column, constant: Constant) -> str:
    text = _text(column, constant)
    found = _MOMENT.fullmatch(text)
    is_date = column.kind == "date"
    if found is None or (is_date and found[2]):
        wanted = "'YYYY-MM-DD'" if is_date else "'YYYY-MM-DD HH:MM:SS'"
        raise ConditionError(f"{column.name} is {column.kind}: {constant.text} is not {wanted}")
    try:
        datetime.fromisoformat(found[1] if is_date else f"{found[1]} {found[2] or '00:00:00'}")
    except ValueError:
        raise ConditionError(f"{column.name}: there is no moment {constant.text}") from None
    if is_date:
        return found[1]
    return f"{found[1]} {found[2] or '00:00:00'}{_fraction(column, constant, found[3] or '')}"


def _duration(column: Column, constant: Constant) -> int:
    text = _text(column, constant)
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConditionError(f"{column.name} is time: {constant.text} is not 'HH:MM:SS'")
    try:
        return parse_duration(found[1] + _fraction(column, constant, found[2] or ""))
    except ValueError:
        raise ConditionError(f"{column.name}: there is no time {constant.text}") from None


def _fraction(column: Column, constant: Constant, digits: str) -> str:
    """Return the point and as many digits as the column has."""
    if digits[column.fsp :].strip("0"):
        raise ConditionError(
            f"{column.name} has {column.fsp} digits of a second's fraction, {constant.text} more"
        )
    return f".{digits[: column.fsp]:0<{column.fsp}}" if column.fsp else ""
