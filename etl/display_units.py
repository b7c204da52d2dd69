"""Format bytes, seconds and values for people."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_size(count: float) -> str:
    """Format a number of bytes: ``0 B``, ``4.2 kB``, ``1,234.5 TB``."""
    power = 0
    while count >= 999.95 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:,.0f} {_UNITS[0]}" if power == 0 else f"{count:,.1f} {_UNITS[power]}"


def format_duration(seconds: float) -> str:
    """Format a duration: ``0 s``, ``59 s``, ``2 min 5 s``, ``3 h 20 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_value(value: object, max_chars: int) -> str:
    r"""Format a value of a row, cut after `max_chars` characters.

    What has no glyph, as control characters and marks that turn the direction of text, is escaped.
    """
    text = (
        "NULL" if value is None else f"0x{value.hex()}" if isinstance(value, bytes) else repr(value)
    )
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
