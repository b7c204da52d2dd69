"""Read a value as a number, a string or a moment, as TiDB does before it fits it into a type."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sluice.tidb.codec.column_value import set_text
from sluice.tidb.conversion import durations, numbers, strings, times
from sluice.tidb.conversion import json as documents
from sluice.tidb.conversion.context import ConversionSession, ValueOutOfRange
from sluice.tidb.schema import Column


def as_moment(value: str, source: Column, session: ConversionSession) -> times.Moment:
    """Return a date or time in the session's zone."""
    moment = times.parse(value)
    return times.to_zone(moment, session) if source.kind == "timestamp" else moment


def as_text(value: Any, source: Column, session: ConversionSession) -> bytes:
    """Return a value as a string, before it is fitted into a type."""
    match source.kind:
        case "text" | "binary":
            return bytes(value)
        case "float" | "double":
            return strings.float_text(value, single=source.kind == "float")
        case "timestamp":
            return times.show(as_moment(value, source, session), source.fsp).encode()
        case "enum":
            return element_of(value, source).encode()
        case "set":
            return set_text(source, value).encode()
    return str(value).encode()


def element_of(value: int, source: Column) -> str:
    """Return the text of an ENUM's number; "" for 0."""
    return source.elems[value - 1] if value else ""


def as_integer(
    value: Any, source: Column, low: int, high: int, session: ConversionSession
) -> int | None:
    """Convert to an integer within these bounds. Raises ValueOutOfRange."""
    match source.kind:
        case "int" | "year" | "bit" | "enum" | "set":
            return numbers.clip(value, low, high)
        case "float" | "double":
            return numbers.float_to_int(value, low, high)
        case "decimal":
            return numbers.decimal_to_int(Decimal(value), low, high)
        case "text" | "binary":
            return _integer_of_text(value, low, high)
        case "json":
            return documents.to_int(documents.read(value), low, high)
        case "time":
            return numbers.clip(_time_number(durations.parse(value), low), low, high)
    return numbers.clip(_date_number(value, source, low, session), low, high)


def _integer_of_text(value: bytes, low: int, high: int) -> int | None:
    misfit = None
    try:
        number: Any = numbers.text_to_int(value, unsigned=low == 0)
    except ValueOutOfRange as found:
        misfit, number = found, found.replacement
    if number is None:
        raise ValueOutOfRange(None, "out of range")
    number = numbers.clip(number, low, high)
    if misfit is not None:
        raise ValueOutOfRange(number, str(misfit))
    return int(number)


def _date_number(value: str, source: Column, low: int, session: ConversionSession) -> int:
    """Return YYYYMMDD[HHMMSS].

    For signed types TiDB rounds the time, for unsigned ones the number: 23:59:59.5 becomes 235960.
    """
    moment = as_moment(value, source, session)
    if source.kind == "date":
        return (moment[0] * 100 + moment[1]) * 100 + moment[2]
    up = 0
    if low < 0:
        moment = times.round_to(moment, 0, session)
    else:
        up = moment[6] >= 500_000
    number = 0
    for part, digits in zip(moment[:6], (4, 2, 2, 2, 2, 2), strict=True):
        number = number * 10**digits + part
    return number + up


def _time_number(micro: int, low: int) -> int:
    """Return ``[-]HHMMSS``.

    As with dates, TiDB rounds the time for signed types and the number for unsigned ones.
    """
    if low < 0:
        return durations.to_number(durations.round_to(micro, 0))
    number = durations.to_number(abs(micro)) + (abs(micro) % 1_000_000 >= 500_000)
    return -number if micro < 0 else number


def as_float(value: Any, source: Column, session: ConversionSession) -> float:
    """Return a value as a float. Raises ValueOutOfRange."""
    match source.kind:
        case "text" | "binary":
            return numbers.text_to_float(value)
        case "json":
            return documents.to_float(documents.read(value))
        case "date" | "datetime" | "timestamp" | "time":
            return float(_number_text(value, source, session))
    return float(value)


def _number_text(value: str, source: Column, session: ConversionSession) -> str:
    """Return a date or a time as a number, with its fraction."""
    if source.kind == "time":
        micro = durations.parse(value)
        whole, fraction = str(durations.to_number(micro)), abs(micro) % 1_000_000
        if micro < 0 and not whole.startswith("-"):
            whole = f"-{whole}"
        return f"{whole}.{fraction:06}"
    moment = as_moment(value, source, session)
    is_rounded_up = moment[6] >= 500_000 and source.kind != "date"
    return f"{_date_number(value, source, 0, session) - is_rounded_up}.{moment[6]:06}"


def as_decimal(value: Any, source: Column, session: ConversionSession) -> Decimal:
    """Return a value as a decimal. Raises ValueOutOfRange."""
    match source.kind:
        case "text" | "binary":
            return numbers.text_to_decimal(value)
        case "json":
            return documents.to_decimal(documents.read(value))
        case "float" | "double":
            return numbers.EXACT.create_decimal(repr(float(value)))
        case "date" | "datetime" | "timestamp" | "time":
            return numbers.EXACT.create_decimal(_number_text(value, source, session))
    return numbers.EXACT.create_decimal(value)


def as_unsigned(value: Any, source: Column, session: ConversionSession) -> tuple[int | None, str]:
    """Return (unsigned number of 64 bits, why it isn't the whole value or nothing).

    None if TiDB gives up; of JSON it takes what there is of a number, unless that is a string with
    more than 64 bits.
    """
    try:
        return as_integer(value, source, 0, numbers.MAX_UINT, session), ""
    except ValueOutOfRange as misfit:
        warned = source.kind == "json" and str(misfit) != numbers.OUT_OF_RANGE
        return (int(misfit.replacement) if warned else None), str(misfit)  # type: ignore[call-overload]
