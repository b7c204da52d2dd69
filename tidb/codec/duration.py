"""TIME values: signed nanoseconds, in text `[-]HH:MM:SS[.ffffff]` with hours up to 838.

In rows they are a varint datum, in keys and clustered handles 8 bytes that compare in order; the
datum's flag names the form.
"""

import re

from sluice.tidb.codec.errors import CodecError

_TEXT = re.compile(r"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
MAX_HOURS = 838


def parse_duration(text: str) -> int:
    """Nanoseconds of a TIME text."""
    match = _TEXT.fullmatch(text)
    if not match or int(match[2]) > MAX_HOURS or int(match[3]) > 59 or int(match[4]) > 59:
        raise CodecError(f"{text!r} is no TIME value")
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
