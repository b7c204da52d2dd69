"""Spans of time in settings: short pauses, and times to keep or between runs.

Imports nothing heavy: DAG files read their schedules by it.
"""

from __future__ import annotations

import re

__all__ = ["MIN_KEEP_MS", "hours_of_day", "is_due", "keep_ms", "parse_pause_ms", "span_ms"]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000}
_PAUSE = re.compile(r"(\d+)(ms|s|m)\Z")

_SPAN_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"(\d+)([mhd])\Z")
MIN_KEEP_MS = 3_600_000
"""An upload that was given up may arrive late; a store refuses one that is older than 15 minutes.
Until then its place is kept.
"""
_DUE_EARLY_MS = 1_800_000
"""A schedule's runs come a little earlier or later each time; no interval is below 1h."""


def parse_pause_ms(text: str) -> int:
    """Return milliseconds of a pause such as "500ms", "2s", "1m". Raises ValueError."""
    match = _PAUSE.match(text)
    if match is None:
        raise ValueError(f"{text!r}: a number and ms, s or m are expected, as in 1s")
    return int(match[1]) * _UNITS_MS[match[2]]


def span_ms(text: str) -> int:
    """Return milliseconds of a span such as "7d", "36h", "5m". Raises ValueError."""
    match = _SPAN.match(text)
    if match is None:
        raise ValueError(f"{text!r}: a number and m, h or d are expected, as in 7d")
    return int(match[1]) * _SPAN_UNITS_MS[match[2]]


def keep_ms(text: str) -> int:
    """Return milliseconds for which something is kept, such as "7d", "36h"; 0 for "".

    Raises ValueError.
    """
    if not text:
        return 0
    span = span_ms(text)
    if span < MIN_KEEP_MS:
        raise ValueError(f"{text!r}: at least 1h")
    return span


def is_due(last_ms: float, every_ms: int, now_ms: float) -> bool:
    """Return whether `every_ms` (0: never due) has passed since `last_ms` (Unix ms), about."""
    return every_ms > 0 and now_ms - last_ms >= every_ms - _DUE_EARLY_MS


def hours_of_day(text: str) -> frozenset[int]:
    """Return the hours (0 to 23) from one to before another, as in "22-4"; all for "".

    Raises ValueError.
    """
    if not text:
        return frozenset(range(24))
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and int(low) < 24 and int(high) <= 24):
        raise ValueError(f"{text!r}: two hours of the day, as in 22-4")
    begin, end = int(low), int(high)
    return frozenset(hour % 24 for hour in range(begin, end if end > begin else end + 24))
