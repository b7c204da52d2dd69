"""TIME values by TiDB's rules, in microseconds."""

from __future__ import annotations

import re

from sluice.tidb.codec.times import format_duration, parse_duration
from sluice.tidb.conversion import times
from sluice.tidb.conversion.context import ConversionSession, NotConvertible, ValueOutOfRange
from sluice.tidb.conversion.numbers import MAX_INT, trim

MAX_US = (838 * 3600 + 59 * 60 + 59) * 1_000_000
MAX_NUMBER = 8_385_959
_S = rb"[ \t\n\v\f\r]"
_DAYS = re.compile(
    rb"(\d++)"
    + _S
    + rb"++(\d++)(?:"
    + _S
    + rb"*+:"
    + _S
    + rb"*+(\d++)(?:"
    + _S
    + rb"*+:"
    + _S
    + rb"*+(\d++)|(?!"
    + _S
    + rb"*:))|(?!"
    + _S
    + rb"*:))"
)
_CLOCK = re.compile(
    rb"(\d++)"
    + _S
    + rb"*+:"
    + _S
    + rb"*+(\d++)(?:"
    + _S
    + rb"*+:"
    + _S
    + rb"*+(\d++)|(?!"
    + _S
    + rb"*:))"
)
_COMPACT = re.compile(rb"\d+")
_FRACTION = re.compile(_S + rb"*(?:\.(\d*))?")
_DATE = re.compile(rb"\d+[!-/:-@\[-`{-~]\d+[!-/:-@\[-`{-~]\d+[ T]")
_DATE_DIGITS = re.compile(rb"(\d+)")


def parse(text: str) -> int:
    """Parse a value as columns have it, in microseconds."""
    return parse_duration(text) // 1000


def show(micro: int, fsp: int) -> str:
    """Return the text of a TIME column."""
    return format_duration(micro * 1000, fsp)


def round_to(micro: int, fsp: int) -> int:
    """Round to `fsp` fraction digits, halves towards later times."""
    unit = int(10 ** (6 - fsp))
    return (micro + unit // 2) // unit * unit


def to_number(micro: int) -> int:
    """Return ``[-]HHMMSS`` of whole seconds."""
    seconds = abs(micro) // 1_000_000
    number = seconds // 3600 * 10_000 + seconds // 60 % 60 * 100 + seconds % 60
    return -number if micro < 0 else number


def of_moment(moment: times.Moment) -> int:
    """Return the time of day in microseconds."""
    return ((moment[3] * 60 + moment[4]) * 60 + moment[5]) * 1_000_000 + moment[6]


def from_text(text: bytes, fsp: int, session: ConversionSession) -> int:
    """Parse text as TiDB does. Raises ValueOutOfRange with the value that TiDB stores then."""
    rest = trim(text)
    try:
        return _match(rest, fsp)
    except ValueOutOfRange as misfit:
        if not _may_be_a_date(rest):
            raise
        try:
            digits = times.fraction_at(rest)
            own = min(6, len(rest) - digits - 1) if digits >= 0 else 0
            moment = times.from_text(rest, own, session, timestamp=False)
        except ValueOutOfRange:
            raise ValueOutOfRange(0, "no time") from misfit
        return round_to(of_moment(moment), fsp)


def _may_be_a_date(text: bytes) -> bool:
    digits = _DATE_DIGITS.match(text)
    return digits is not None and (len(digits[1]) in (12, 14) or _DATE.match(text) is not None)


def _match(text: bytes, fsp: int) -> int:
    negative = text.startswith(b"-")
    body = text[1:].lstrip(b" \t\n\v\f\r") if negative else text
    hours, minutes, seconds, rest = _clock(body)
    match = _FRACTION.match(rest)
    assert match is not None
    digits, rest = match[1] or b"", rest[match.end() :]
    if len(rest) > 0 and len(body) >= 12:
        raise ValueOutOfRange(0, "no time")
    micro = _fraction(digits, fsp)
    if micro == 1_000_000:
        micro, seconds = 0, seconds + 1
        if seconds == 60:
            seconds, minutes = 0, minutes + 1
            if minutes == 60:
                minutes, hours = 0, hours + 1
    if minutes >= 60 or seconds >= 60:
        raise ValueOutOfRange(0, "no time")
    value = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micro
    if value > MAX_US:
        raise ValueOutOfRange(-MAX_US if negative else MAX_US, "out of a TIME's range")
    value = -value if negative else value
    if rest:
        raise ValueOutOfRange(value, "not a time to its end")
    return value


def _clock(text: bytes) -> tuple[int, int, int, bytes]:
    for pattern in (_DAYS, _CLOCK):
        match = pattern.match(text)
        if match is not None:
            parts = [int(part or b"0") for part in match.groups()]
            if max(parts) > 1 << 40:
                raise NotConvertible("a time of that many digits")
            if pattern is _DAYS:
                parts = [parts[0] * 24 + parts[1], *parts[2:]]
            return parts[0], parts[1], parts[2], text[match.end() :]
    match = _COMPACT.match(text)
    if match is None:
        raise ValueOutOfRange(0, "no time")
    number = int(match[0])
    if number > MAX_INT:
        raise NotConvertible("a time of that many digits")
    return number // 10_000, number // 100 % 100, number % 100, text[match.end() :]


def _fraction(digits: bytes, fsp: int) -> int:
    """Return microseconds, 1,000,000 when rounded up to a second."""
    if len(digits) <= fsp:
        return int(digits.ljust(6, b"0"))
    return (int(digits[: fsp + 1]) + 5) // 10 * int(10 ** (6 - fsp))
