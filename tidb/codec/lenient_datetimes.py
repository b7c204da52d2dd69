"""Parse dates and times as people spell them in defaults, `2020-1-1` or `20200101`.

TiDB before 6.1 kept them so. Only spellings that every version reads in one way are parsed; others
raise CodecError, which names them.
"""

from __future__ import annotations

import re
from decimal import Decimal

from sluice.tidb.codec.errors import CodecError

_SEPARATED = re.compile(
    r"(\d{4}|\d{2})[^\w\s](\d{1,2})[^\w\s](\d{1,2})(?:[T\s]+(\d{1,2})(?:[^\w\s](\d{1,2})(?:[^\w\s](\d{1,2}))?)?)?(?:\.(\d{0,6})0*)?",
    re.ASCII,
)
_DIGITS = re.compile(
    r"(\d{4}|\d{2})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)(?:\.(\d{0,6})0*)?)?", re.ASCII
)
_CLOCK = re.compile(
    r"(-?)(?:(\d{1,2})\s+)?(\d{1,3})(?::(\d{1,2}))?(?::(\d{1,2}))?(?:\.(\d{0,6})0*)?", re.ASCII
)
_CLOCK_DIGITS = re.compile(r"(-?)(\d{1,3})(\d\d)(\d\d)(?:\.(\d{0,6})0*)?", re.ASCII)


def parse_moment(text: str) -> str:
    """Return `YYYY-MM-DD HH:MM:SS.ffffff` of a spelled DATE, DATETIME or TIMESTAMP.

    Years of two digits are 1970 to 2069.
    """
    match = _DIGITS.fullmatch(text.strip()) or _SEPARATED.fullmatch(text.strip())
    if not match:
        raise CodecError(f"invalid date {text!r}")
    year, *rest = (int(part or 0) for part in match.groups()[:6])
    if len(match[1]) == 2:
        year += 2000 if year < 70 else 1900
    month, day, hour, minute, second = rest
    return (
        f"{year:04}-{month:02}-{day:02}"
        f" {hour:02}:{minute:02}:{second:02}.{(match[7] or '').ljust(6, '0')}"
    )


def parse_duration(text: str) -> str:
    """Return a spelled TIME as `[-]HH:MM:SS.ffffff`.

    `1:2` has no seconds, `102` is a minute and two seconds.
    """
    stripped = text.strip()
    if digits := _CLOCK_DIGITS.fullmatch(stripped.zfill(5) if stripped.isdigit() else stripped):
        sign, hour, minute, second, fraction = digits.groups()
        return f"{sign}{int(hour):02}:{minute}:{second}.{(fraction or '').ljust(6, '0')}"
    match = _CLOCK.fullmatch(stripped)
    if not match or (match[4] is None and match[2] is None):
        raise CodecError(f"invalid TIME value {text!r}")
    sign, days, hour, minute, second = match.groups()[:5]
    hours = int(days or 0) * 24 + int(hour)
    fraction = (match[6] or "").ljust(6, "0")
    return f"{sign}{hours:02}:{int(minute or 0):02}:{int(second or 0):02}.{fraction}"


def parse_year(text: str) -> int:
    """Parse a YEAR; one or two digits are 1970 to 2069.

    TiDB reads the text of a default as it converts texts: `0` is 2000, and only a zero of four
    digits is none.
    """
    number = int(Decimal(text))
    if number == 0 and (len(text) == 4 or not text.strip().startswith("0")):
        return 0
    return number + (2000 if number < 70 else 1900) if 0 <= number < 100 else number
