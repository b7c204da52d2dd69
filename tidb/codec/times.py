"""Encode and decode TIME, DATE, DATETIME and TIMESTAMP.

TIME is signed nanoseconds, in text `[-]HH:MM:SS[.ffffff]` with hours up to 838. In rows it is a
varint datum, in keys and clustered handles 8 bytes that compare in order; the datum's flag names
the form.

The others are one unsigned 64-bit integer. Layout, from the top: (year * 13 + month) 46..63, day 5
bits, hour 5, minute 6, second 6, microsecond 24. 0 is the zero date. Month and day may be 0 on
their own, so values are text, never datetime objects. TIMESTAMP is in UTC.
"""

import re

from sluice.tidb.codec.errors import CodecError

_DURATION = re.compile(r"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
MAX_HOURS = 838


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a TIME text. Raises CodecError."""
    match = _DURATION.fullmatch(text)
    if not match or int(match[2]) > MAX_HOURS or int(match[3]) > 59 or int(match[4]) > 59:
        raise CodecError(f"invalid TIME value {text!r}")
    seconds = (int(match[2]) * 60 + int(match[3])) * 60 + int(match[4])
    value = seconds * 1_000_000_000 + int((match[5] or "").ljust(6, "0")) * 1000
    return -value if match[1] else value


def format_duration(nanoseconds: int, fsp: int = 0) -> str:
    """Format a TIME value with `fsp` fraction digits (0 to 6).

    Raises CodecError beyond 838 hours.
    """
    micro = abs(nanoseconds) // 1000
    seconds, micro = divmod(micro, 1_000_000)
    if seconds >= (MAX_HOURS + 1) * 3600:
        raise CodecError(f"{nanoseconds} ns is no TIME value")
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fsp:
        text += f".{f'{micro:06}'[:fsp]}"
    return "-" + text if nanoseconds < 0 else text


ZERO_DATE = "0000-00-00"
_DATETIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")


def pack_time(text: str) -> int:
    """Pack `YYYY-MM-DD` or `YYYY-MM-DD HH:MM:SS[.ffffff]` as TiDB does. Raises CodecError."""
    match = _DATETIME.fullmatch(text)
    if not match:
        raise CodecError(f"invalid date {text!r}")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    micro = int((match[7] or "").ljust(6, "0"))
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise CodecError(f"invalid date {text!r}")
    return (
        ((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second
    ) << 24 | micro


def format_time(packed: int, fsp: int | None = 0) -> str:
    """Format a packed time as MySQL does, with `fsp` fraction digits (0 to 6).

    None: the date alone. Raises CodecError when a field is out of its range.
    """
    micro, rest = packed & 0xFFFFFF, packed >> 24
    second, minute, hour = rest & 63, rest >> 6 & 63, rest >> 12 & 31
    day, (year, month) = rest >> 17 & 31, divmod(rest >> 22, 13)
    if year > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
        raise CodecError(f"invalid packed time 0x{packed:016x}")
    date = f"{year:04}-{month:02}-{day:02}"
    if fsp is None:
        return date
    text = f"{date} {hour:02}:{minute:02}:{second:02}"
    return f"{text}.{f'{micro:06}'[:fsp]}" if fsp else text
