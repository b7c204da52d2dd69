"""Convert one value as TiDB does when MODIFY or CHANGE COLUMN gives a column another type.

The rules are TiDB's own (`types.Datum.ConvertTo`, called by the job's workers for every row), up to
the numbers of bits and digits at which it rounds, cuts off or gives up. A value that doesn't fit is
an error in strict mode; else TiDB stores the nearest one. Values are as
`sluice.tidb.codec.column_value` lists them; an ENUM or SET that is converted comes as its number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.tidb.codec.column_value import set_text
from sluice.tidb.conversion import durations, numbers, strings, times
from sluice.tidb.conversion import enums_sets_bits as names
from sluice.tidb.conversion import json as documents
from sluice.tidb.conversion.coerce import (
    as_decimal,
    as_float,
    as_integer,
    as_moment,
    as_text,
    as_unsigned,
    element_of,
)
from sluice.tidb.conversion.context import ConversionSession, NotConvertible, ValueOutOfRange
from sluice.tidb.schema import Column

_WHOLE_TIMES = ("date", "datetime", "timestamp")


def convert_value(value: Any, source: Column, target: Column, session: ConversionSession) -> Any:
    """Return the new value; None for NULL. Raises ValueOutOfRange, NotConvertible."""
    rule = _CONVERTERS.get(target.kind)
    if rule is None or source.kind not in _SOURCES:
        raise NotConvertible(
            f"how TiDB converts {source.kind or source.tp} to {target.kind or target.tp} isn't"
            " known"
        )
    return rule(value, source, target, session)


def _to_int(value: Any, source: Column, target: Column, session: ConversionSession) -> int | None:
    low, high = numbers.bounds(target.tp, unsigned=target.unsigned)
    return as_integer(value, source, low, high, session)


def _to_year(value: Any, source: Column, target: Column, session: ConversionSession) -> int:
    if source.kind in _WHOLE_TIMES:
        return _year(as_moment(value, source, session)[0], zero_is_2000=False)
    misfit = None
    try:
        number: Any = as_integer(value, source, numbers.MIN_INT, numbers.MAX_INT, session)
    except ValueOutOfRange as found:
        if source.kind not in ("text", "binary", "json"):
            raise NotConvertible("out of a YEAR's range: TiDB gives up on it") from found
        misfit, number = found, found.replacement
        if str(found) == numbers.OUT_OF_RANGE:
            raise ValueOutOfRange(0, numbers.OUT_OF_RANGE) from found
    text = numbers.trim(value) if source.kind in ("text", "binary") else b""
    number = _year(
        number, zero_is_2000=len(value) != 4 and text.startswith(b"0") if text else False
    )
    if misfit is not None:
        raise ValueOutOfRange(number, str(misfit))
    return int(number)


def _year(number: int, *, zero_is_2000: bool) -> int:
    if number == 0 and not zero_is_2000:
        return 0
    year = times.full_year(number)
    if year < 0:
        raise ValueOutOfRange(0, "negative")
    return numbers.clip(year, 1901, 2155)


def _to_float(value: Any, source: Column, target: Column, session: ConversionSession) -> float:
    misfit = None
    try:
        number = as_float(value, source, session)
    except ValueOutOfRange as found:
        misfit, number = found, float(found.replacement)  # type: ignore[arg-type]
    number = numbers.fit_float(
        number, target.flen, target.decimal, unsigned=target.unsigned, single=target.kind == "float"
    )
    if misfit is not None:
        raise ValueOutOfRange(number, str(misfit))
    return number


def _to_decimal(value: Any, source: Column, target: Column, session: ConversionSession) -> str:
    misfit = None
    try:
        number = as_decimal(value, source, session)
    except ValueOutOfRange as found:
        misfit, number = found, found.replacement  # type: ignore[assignment]
    text = numbers.fit_decimal(
        number, target.flen, max(target.decimal, 0), unsigned=target.unsigned
    )
    if misfit is not None:
        raise ValueOutOfRange(text, str(misfit))
    return text


def _to_text(value: Any, source: Column, target: Column, session: ConversionSession) -> bytes:
    text = as_text(value, source, session)
    if source.kind in ("text", "binary"):
        text = strings.recode(text, source, target)
    if target.kind == "text" and not strings.is_utf8(text):
        raise NotConvertible("TiDB stored bytes in text that aren't of its character set")
    return strings.truncate_to_type(text, target)


def _to_moment(value: Any, source: Column, target: Column, session: ConversionSession) -> str:
    fsp = None if target.kind == "date" else target.fsp
    timestamp = target.kind == "timestamp"
    try:
        moment = _read_moment(value, source, target, session)
    except ValueOutOfRange as misfit:
        raise ValueOutOfRange(
            _stored_moment(misfit.replacement, target, fsp, session), str(misfit)
        ) from misfit
    return times.show(times.to_utc(moment, session) if timestamp else moment, fsp)


def _stored_moment(moment: Any, target: Column, fsp: int | None, session: ConversionSession) -> str:
    if target.kind == "timestamp" and moment != times.ZERO:
        raise NotConvertible("TiDB stored it in a TIMESTAMP, beyond the range of the type")
    return times.show(moment, fsp)


def _read_moment(
    value: Any, source: Column, target: Column, session: ConversionSession
) -> times.Moment:
    timestamp = target.kind == "timestamp"
    match source.kind:
        case "text" | "binary":
            return _parsed(value, target, session)
        case "json":
            document = documents.read(value)
            return _parsed(documents.unquoted(document, value, session), target, session)
        case "int" | "year":
            if value > numbers.MAX_INT:
                raise ValueOutOfRange(times.ZERO, "no date")
            moment = times.from_number(value, session, timestamp=timestamp)
        case "decimal":
            moment = times.from_decimal(value, target.fsp, session, timestamp=timestamp)
        case "date" | "datetime" | "timestamp":
            moment = as_moment(value, source, session)
            if source.kind != target.kind:
                _checked(moment, session, timestamp=timestamp)
            if source.kind != "date" and target.kind != "date":
                moment = times.round_to(moment, target.fsp, session)
        case "time":
            moment = _at_today(durations.parse(value), session)
            _checked(moment, session, timestamp=timestamp)
            if target.kind != "date":
                moment = times.round_to(moment, target.fsp, session)
        case _:
            raise NotConvertible(f"TiDB doesn't convert {source.kind} to {target.kind}")
    return (*moment[:3], 0, 0, 0, 0) if target.kind == "date" else moment


def _parsed(text: bytes, target: Column, session: ConversionSession) -> times.Moment:
    moment = times.from_text(text, target.fsp, session, timestamp=target.kind == "timestamp")
    return (*moment[:3], 0, 0, 0, 0) if target.kind == "date" else moment


def _checked(moment: times.Moment, session: ConversionSession, *, timestamp: bool) -> None:
    reason = times.check(moment, session, timestamp=timestamp)
    if reason:
        raise ValueOutOfRange(moment, reason)


def _at_today(micro: int, session: ConversionSession) -> times.Moment:
    return times.at_date(session.today(), micro)


def _to_duration(
    value: Any, source: Column, target: Column, session: ConversionSession
) -> str | None:
    try:
        micro = _duration(value, source, target, session)
    except ValueOutOfRange as misfit:
        instead = misfit.replacement
        shown = durations.show(instead, target.fsp) if isinstance(instead, int) else None
        raise ValueOutOfRange(shown, str(misfit)) from misfit
    return durations.show(micro, target.fsp)


def _duration(value: Any, source: Column, target: Column, session: ConversionSession) -> int:
    match source.kind:
        case "date" | "datetime" | "timestamp":
            return durations.round_to(
                durations.of_moment(as_moment(value, source, session)), target.fsp
            )
        case "time":
            return durations.round_to(durations.parse(value), target.fsp)
        case "text" | "binary":
            return durations.from_text(value, target.fsp, session)
        case "json":
            return durations.from_text(
                documents.unquoted(documents.read(value), value, session), target.fsp, session
            )
        case "int" | "year" | "float" | "double" | "decimal":
            return _duration_of_number(value, source, target, session)
    raise NotConvertible(f"TiDB doesn't convert {source.kind} to TIME")


def _duration_of_number(
    value: Any, source: Column, target: Column, session: ConversionSession
) -> int:
    try:
        number = as_integer(value, source, numbers.MIN_INT, numbers.MAX_INT, session)
    except ValueOutOfRange as misfit:
        raise ValueOutOfRange(None, str(misfit)) from misfit
    assert number is not None
    if durations.MAX_NUMBER < number < 10_000_000_000:
        raise ValueOutOfRange(durations.MAX_US, "out of a TIME's range")
    if number < -durations.MAX_NUMBER:
        raise ValueOutOfRange(None, "out of a TIME's range")
    return durations.from_text(as_text(value, source, session), target.fsp, session)


def _to_enum(value: Any, source: Column, target: Column, session: ConversionSession) -> str:
    match source.kind:
        case "text" | "binary":
            number = _misfitting(names.enum_of, _utf8(value), target)
        case "enum":
            number = (
                _misfitting(names.enum_of, element_of(value, source), target) if value else (0, "")
            )
        case "set":
            number = _misfitting(names.enum_of, set_text(source, value), target)
        case _:
            number = _numbered(names.enum_at, as_unsigned(value, source, session), target)
    if not number[0] and "" in target.elems:
        raise NotConvertible(
            "TiDB stored the ENUM's empty value, and the type has an empty element too"
        )
    text = element_of(number[0], target)
    if number[1]:
        raise ValueOutOfRange(text, number[1])
    return text


def _to_set(value: Any, source: Column, target: Column, session: ConversionSession) -> str:
    match source.kind:
        case "text" | "binary":
            number = _misfitting(names.set_of, _utf8(value), target)
        case "enum":
            number = _misfitting(names.set_of, element_of(value, source), target)
        case "set":
            number = _misfitting(names.set_of, set_text(source, value), target)
        case _:
            number = _numbered(names.set_at, as_unsigned(value, source, session), target)
    text = set_text(target, number[0])
    if number[1]:
        raise ValueOutOfRange(text, number[1])
    return text


def _numbered(
    read: Callable[[Any, Column], int], found: tuple[int | None, str], target: Column
) -> tuple[int, str]:
    value, reason = found
    if value is None:
        return 0, reason
    number, misfit = _misfitting(read, value, target)
    return number, reason or misfit


def _misfitting(read: Callable[[Any, Column], int], value: Any, target: Column) -> tuple[int, str]:
    """Return (number, why it didn't fit, or nothing)."""
    try:
        return read(value, target), ""
    except ValueOutOfRange as misfit:
        return int(misfit.replacement), str(misfit)  # type: ignore[call-overload]


def _utf8(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _to_bit(value: Any, source: Column, target: Column, session: ConversionSession) -> int:
    if source.kind in ("int", "year"):
        return names.bits_of(value & numbers.MAX_UINT, target)
    if source.kind in ("text", "binary"):
        raise NotConvertible("TiDB doesn't convert text to BIT")
    misfit = None
    try:
        number: Any = as_integer(value, source, 0, numbers.MAX_UINT, session)
    except ValueOutOfRange as found:
        misfit, number = found, found.replacement
    bits = names.bits_of(number, target)
    if misfit is not None:
        raise ValueOutOfRange(bits, str(misfit))
    return bits


def _to_json(value: Any, source: Column, target: Column, session: ConversionSession) -> str:
    match source.kind:
        case "json":
            return str(value)
        case "text" | "binary":
            return documents.parse_text(value, session)
        case "int" | "year":
            return documents.write(int(value))
        case "float" | "double" | "decimal":
            return documents.write(float(value))
        case "enum" | "set":  # read as JSON: an element that is none becomes NULL
            return documents.parse_text(as_text(value, source, session), session)
        case "date":
            return f'"{value}"'
        case "datetime" | "timestamp":
            return f'"{times.show(as_moment(value, source, session), 6)}"'
        case "time":
            return f'"{durations.show(durations.parse(value), 6)}"'
    return documents.write_bytes(value.to_bytes((max(source.flen, 1) + 7) // 8, "big"))


_CONVERTERS: dict[str, Callable[[Any, Column, Column, ConversionSession], Any]] = {
    "int": _to_int,
    "year": _to_year,
    "float": _to_float,
    "double": _to_float,
    "decimal": _to_decimal,
    "text": _to_text,
    "binary": _to_text,
    "date": _to_moment,
    "datetime": _to_moment,
    "timestamp": _to_moment,
    "time": _to_duration,
    "enum": _to_enum,
    "set": _to_set,
    "bit": _to_bit,
    "json": _to_json,
}
_SOURCES = frozenset(_CONVERTERS)
