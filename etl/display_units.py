"""Format counts, bytes, seconds and values for people."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_LONG_S = 3 * 86_400


def counted(number: int, one: str, many: str = "") -> str:
    """Format a number of things: ``1 table``, ``1,200 rows``; `many`: a plural without plain s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def format_size(size: float) -> str:
    """Format a number of bytes: ``0 B``, ``4.2 kB``, ``1,234.5 TB``."""
    power = 0
    while size >= 999.95 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:,.0f} {_UNITS[0]}" if power == 0 else f"{size:,.1f} {_UNITS[power]}"


def format_duration(seconds: float) -> str:
    """Format a duration: ``0 s``, ``59 s``, ``2 min 5 s``, ``3 h 20 min``, ``4 d 3 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < _LONG_S:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def format_value(value: object, max_chars: int) -> str:
    r"""Format a value of a row, cut after `max_chars` characters.

    What has no glyph, as control characters and marks that turn the direction of text, is escaped.
    """
    text = (
        "NULL" if value is None else f"0x{value.hex()}" if isinstance(value, bytes) else repr(value)
    )
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
