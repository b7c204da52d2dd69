"""Short spans of time in settings."""

from __future__ import annotations

import re

__all__ = ["parse_pause_ms"]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000}
_PAUSE = re.compile(r"(\d+)(ms|s|m)\Z")


def parse_pause_ms(text: str) -> int:
    """Return milliseconds of a pause such as "500ms", "2s", "1m". Raises ValueError."""
    match = _PAUSE.match(text)
    if match is None:
        raise ValueError(f"{text!r}: a number and ms, s or m are expected, as in 1s")
    return int(match[1]) * _UNITS_MS[match[2]]
