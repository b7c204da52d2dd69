"""What TiDB makes of one value when MODIFY or CHANGE COLUMN gives a column another type.

The rules are TiDB's own (`types.Datum.ConvertTo`, called by the job's workers for every row), up to the numbers of bits
and digits at which it rounds, cuts off or gives up. A value that doesn't fit is an error in strict mode; else TiDB
stores what is nearest. Values are as `upstream.codec.column_value` lists them; an ENUM or SET that is converted comes
as its number.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from upstream.codec.column_value import set_text
from upstream.conversion import documents, durations, names, numbers, strings, times
from upstream.conversion.context import MisfitError, RefusedError, Session
from upstream.schema import Column

_WHOLE_TIMES = ("date", "datetime", "timestamp")


def convert_value(value: Any, source: Column, target: Column, session: Session) -> Any:
    """The new value; None for NULL. Raises MisfitError, RefusedError."""
    rule = _RULES.get(target.kind)
    if rule is None or source.kind not in _SOURCES:
        raise RefusedError(f"how TiDB converts {source.kind or source.tp} to {target.kind or target.tp} isn't known")
    return rule(value, source, target, session)


def _moment(value: str, source: Column, session: Session) -> times.Moment:
    moment = times.parse(value)
    return times.to_zone(moment, session) if source.kind == "timestamp" else moment


def _text(value: Any, source: Column, session: Session) -> bytes:
    """A value as a string, before it is fitted into a type."""
    match source.kind:
        case "text" | "binary":
            return bytes(value)
        case "float" | "double":
            return strings.float_text(value, single=source.kind == "float")
        case "timestamp":
            return times.show(_moment(value, source, session), source.fsp).encode()
        case "enum":
            return _element(value, source).encode()
        case "set":
            return set_text(source, value).encode()
    return str(value).encode()


def _element(value: int, source: Column) -> str:
    return source.elems[value - 1] if value else ""


def _to_int(value: Any, source: Column, target: Column, session: Session) -> int | None:
    low, high = numbers.bounds(target.tp, unsigned=target.unsigned)
    return _integer(value, source, low, high, session)


def _integer(value: Any, source: Column, low: int, high: int, session: Session) -> int | None:
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
            return numbers.clip(durations.to_number(durations.round_to(durations.parse(value), 0)), low, high)
    return numbers.clip(_date_number(value, source, low, session), low, high)


def _integer_of_text(value: bytes, low: int, high: int) -> int | None:
    misfit = None
    try:
        number: Any = numbers.text_to_int(value, unsigned=low == 0)
    except MisfitError as found:
        misfit, number = found, found.instead
    if number is None:
        raise MisfitError(None, "out of range")
    number = numbers.clip(number, low, high)
    if misfit is not None:
        raise MisfitError(number, str(misfit))
    return int(number)


def _date_number(value: str, source: Column, low: int, session: Session) -> int:
    """YYYYMMDD[HHMMSS]. For signed types TiDB rounds the time, for unsigned ones the number: 23:59:59.5
    becomes 235960.
    """
    moment = _moment(value, source, session)
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


def _to_year(value: Any, source: Column, target: Column, session: Session) -> int:
    if source.kind in _WHOLE_TIMES:
        return _year(_moment(value, source, session)[0], zero_is_2000=False)
    misfit = None
    try:
        number: Any = _integer(value, source, numbers.MIN_INT, numbers.MAX_INT, session)
    except MisfitError as found:
        if source.kind not in ("text", "binary", "json"):
            raise RefusedError("out of a YEAR's range: TiDB gives up on it") from found
        misfit, number = found, found.instead
        if str(found) == "out of range":
            raise MisfitError(0, "out of range") from found
    text = numbers.trim(value) if source.kind in ("text", "binary") else b""
    number = _year(number, zero_is_2000=len(value) != 4 and text.startswith(b"0") if text else False)
    if misfit is not None:
        raise MisfitError(number, str(misfit))
    return int(number)


def _year(number: int, *, zero_is_2000: bool) -> int:
    if number == 0 and not zero_is_2000:
        return 0
    year = times.full_year(number)
    if year < 0:
        raise MisfitError(0, "negative")
    return numbers.clip(year, 1901, 2155)


def _to_float(value: Any, source: Column, target: Column, session: Session) -> float:
    misfit = None
    try:
        number = _float(value, source, session)
    except MisfitError as found:
        misfit, number = found, float(found.instead)  # type: ignore[arg-type]
    number = numbers.fit_float(
        number, target.flen, target.decimal, unsigned=target.unsigned, single=target.kind == "float"
    )
    if misfit is not None:
        raise MisfitError(number, str(misfit))
    return number


def _float(value: Any, source: Column, session: Session) -> float:
    match source.kind:
        case "text" | "binary":
            return numbers.text_to_float(value)
        case "json":
            return documents.to_float(documents.read(value))
        case "date" | "datetime" | "timestamp" | "time":
            return float(_number_text(value, source, session))
    return float(value)


def _number_text(value: str, source: Column, session: Session) -> str:
    """A date or a time as a number, with its fraction."""
    if source.kind == "time":
        micro = durations.parse(value)
        whole, fraction = str(durations.to_number(micro)), abs(micro) % 1_000_000
        if micro < 0 and not whole.startswith("-"):
            whole = f"-{whole}"
        return f"{whole}.{fraction:06}"
    moment = _moment(value, source, session)
    return (
        f"{_date_number(value, source, 0, session) - (moment[6] >= 500_000 and source.kind != 'date')}.{moment[6]:06}"
    )


def _to_decimal(value: Any, source: Column, target: Column, session: Session) -> str:
    misfit = None
    try:
        number = _decimal(value, source, session)
    except MisfitError as found:
        misfit, number = found, found.instead  # type: ignore[assignment]
    text = numbers.fit_decimal(number, target.flen, max(target.decimal, 0), unsigned=target.unsigned)
    if misfit is not None:
        raise MisfitError(text, str(misfit))
    return text


def _decimal(value: Any, source: Column, session: Session) -> Decimal:
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


def _to_text(value: Any, source: Column, target: Column, session: Session) -> bytes:
    text = _text(value, source, session)
    if source.kind in ("text", "binary"):
        text = strings.recode(text, source, target)
    if target.kind == "text" and not strings.is_utf8(text):
        raise RefusedError("TiDB stored bytes in text that aren't of its character set")
    return strings.fit(text, target)


def _to_moment(value: Any, source: Column, target: Column, session: Session) -> str:
    fsp = None if target.kind == "date" else target.fsp
    timestamp = target.kind == "timestamp"
    try:
        moment = _read_moment(value, source, target, session)
    except MisfitError as misfit:
        raise MisfitError(_stored_moment(misfit.instead, target, fsp, session), str(misfit)) from misfit
    return times.show(times.to_utc(moment, session) if timestamp else moment, fsp)


def _stored_moment(moment: Any, target: Column, fsp: int | None, session: Session) -> str:
    if target.kind == "timestamp" and moment != times.ZERO:
        raise RefusedError("TiDB stored it in a TIMESTAMP, beyond the range of the type")
    return times.show(moment, fsp)


def _read_moment(value: Any, source: Column, target: Column, session: Session) -> times.Moment:
    timestamp = target.kind == "timestamp"
    match source.kind:
        case "text" | "binary":
            return _parsed(value, target, session)
        case "json":
            document = documents.read(value)
            return _parsed(documents.unquoted(document, value), target, session)
        case "int" | "year":
            if value > numbers.MAX_INT:
                raise MisfitError(times.ZERO, "no date")
            moment = times.from_number(value, session, timestamp=timestamp)
        case "decimal":
            moment = times.from_decimal(value, target.fsp, session, timestamp=timestamp)
        case "date" | "datetime" | "timestamp":
            moment = _moment(value, source, session)
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
            raise RefusedError(f"TiDB doesn't convert {source.kind} to {target.kind}")
    return (*moment[:3], 0, 0, 0, 0) if target.kind == "date" else moment


def _parsed(text: bytes, target: Column, session: Session) -> times.Moment:
    moment = times.from_text(text, target.fsp, session, timestamp=target.kind == "timestamp")
    return (*moment[:3], 0, 0, 0, 0) if target.kind == "date" else moment


def _checked(moment: times.Moment, session: Session, *, timestamp: bool) -> None:
    reason = times.check(moment, session, timestamp=timestamp)
    if reason:
        raise MisfitError(moment, reason)


def _at_today(micro: int, session: Session) -> times.Moment:
    return times.at_date(session.today(), micro)


def _to_duration(value: Any, source: Column, target: Column, session: Session) -> str | None:
    try:
        micro = _duration(value, source, target, session)
    except MisfitError as misfit:
        instead = misfit.instead
        shown = durations.show(instead, target.fsp) if isinstance(instead, int) else None
        raise MisfitError(shown, str(misfit)) from misfit
    return durations.show(micro, target.fsp)


def _duration(value: Any, source: Column, target: Column, session: Session) -> int:
    match source.kind:
        case "date" | "datetime" | "timestamp":
            return durations.round_to(durations.of_moment(_moment(value, source, session)), target.fsp)
        case "time":
            return durations.round_to(durations.parse(value), target.fsp)
        case "text" | "binary":
            return durations.from_text(value, target.fsp, session)
        case "json":
            return durations.from_text(documents.unquoted(documents.read(value), value), target.fsp, session)
        case "int" | "year" | "float" | "double" | "decimal":
            return _duration_of_number(value, source, target, session)
    raise RefusedError(f"TiDB doesn't convert {source.kind} to TIME")


def _duration_of_number(value: Any, source: Column, target: Column, session: Session) -> int:
    try:
        number = _integer(value, source, numbers.MIN_INT, numbers.MAX_INT, session)
    except MisfitError as misfit:
        raise MisfitError(None, str(misfit)) from misfit
    assert number is not None
    if durations.MOST_NUMBER < number < 10_000_000_000:
        raise MisfitError(durations.MOST, "out of a TIME's range")
    if number < -durations.MOST_NUMBER:
        raise MisfitError(None, "out of a TIME's range")
    return durations.from_text(_text(value, source, session), target.fsp, session)


def _to_enum(value: Any, source: Column, target: Column, session: Session) -> str:
    match source.kind:
        case "text" | "binary":
            number = _misfitting(names.enum_of, _utf8(value), target)
        case "enum":
            number = _misfitting(names.enum_of, _element(value, source), target) if value else (0, "")
        case "set":
            number = _misfitting(names.enum_of, set_text(source, value), target)
        case _:
            number = _misfitting(names.enum_at, _unsigned(value, source, session), target)
    if not number[0] and "" in target.elems:
        raise RefusedError("TiDB stored the ENUM's empty value, and the type has an empty element too")
    text = _element(number[0], target)
    if number[1]:
        raise MisfitError(text, number[1])
    return text


def _to_set(value: Any, source: Column, target: Column, session: Session) -> str:
    match source.kind:
        case "text" | "binary":
            number = _misfitting(names.set_of, _utf8(value), target)
        case "enum":
            number = _misfitting(names.set_of, _element(value, source), target)
        case "set":
            number = _misfitting(names.set_of, set_text(source, value), target)
        case _:
            number = _misfitting(names.set_at, _unsigned(value, source, session), target)
    text = set_text(target, number[0])
    if number[1]:
        raise MisfitError(text, number[1])
    return text


def _misfitting(read: Callable[[Any, Column], int], value: Any, target: Column) -> tuple[int, str]:
    """(number, why it didn't fit, or nothing)."""
    if value is None:
        return 0, "out of range"
    try:
        return read(value, target), ""
    except MisfitError as misfit:
        return int(misfit.instead), str(misfit)  # type: ignore[call-overload]


def _unsigned(value: Any, source: Column, session: Session) -> int | None:
    """As an unsigned number of 64 bits, None if it isn't one."""
    try:
        return _integer(value, source, 0, numbers.MAX_UINT, session)
    except MisfitError:
        return None


def _utf8(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _to_bit(value: Any, source: Column, target: Column, session: Session) -> int:
    if source.kind in ("int", "year"):
        return names.bits_of(value & numbers.MAX_UINT, target)
    if source.kind in ("text", "binary"):
        raise RefusedError("TiDB doesn't convert text to BIT")
    misfit = None
    try:
        number: Any = _integer(value, source, 0, numbers.MAX_UINT, session)
    except MisfitError as found:
        misfit, number = found, found.instead
    bits = names.bits_of(number, target)
    if misfit is not None:
        raise MisfitError(bits, str(misfit))
    return bits


def _to_json(value: Any, source: Column, target: Column, session: Session) -> str:
    match source.kind:
        case "json":
            return str(value)
        case "text" | "binary":
            return documents.parse_text(value)
        case "int" | "year":
            return documents.write(int(value))
        case "float" | "double" | "decimal":
            return documents.write(float(value))
        case "enum" | "set":
            return documents.write_bytes(_text(value, source, session))
        case "date":
            return f'"{value}"'
        case "datetime" | "timestamp":
            return f'"{times.show(_moment(value, source, session), 6)}"'
        case "time":
            return f'"{durations.show(durations.parse(value), 6)}"'
    return documents.write_bytes(value.to_bytes((max(source.flen, 1) + 7) // 8, "big"))


_RULES: dict[str, Callable[[Any, Column, Column, Session], Any]] = {
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
_SOURCES = frozenset(_RULES)
