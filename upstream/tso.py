"""TiDB's timestamps: `physical_ms << 18 | logical`, physical in Unix milliseconds, logical below 2^18."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

LOGICAL_BITS = 18
_LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX = (1 << 63) - 1  # timestamps travel as int64 in binlogs


def compose(physical_ms: int, logical: int = 0) -> int:
    """The TSO of a physical time (Unix ms) and a logical counter. ValueError if either is out of range."""
    if not 0 <= logical <= _LOGICAL_MASK:
        raise ValueError(f"the logical part of a TSO is between 0 and {_LOGICAL_MASK}, not {logical}")
    if not 0 <= physical_ms <= _MAX >> LOGICAL_BITS:
        raise ValueError(f"{physical_ms} ms is outside what a TSO can hold")
    return physical_ms << LOGICAL_BITS | logical


def physical_ms(ts: int) -> int:
    """The physical part of a TSO: Unix milliseconds."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """The logical counter of a TSO."""
    return ts & _LOGICAL_MASK


def from_datetime(moment: datetime) -> int:
    """The smallest TSO of a moment, cut to milliseconds. A datetime without a zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return compose((moment - _EPOCH) // timedelta(milliseconds=1))


def to_datetime(ts: int) -> datetime:
    """The physical part of a TSO as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=physical_ms(ts))


def parse_timestamp(text: str) -> int:
    """A TSO from what a person types: the TSO's digits, or an ISO 8601 date-time (UTC unless it has a zone).

    ValueError if it is neither. Digits that would lie before 1980 as a TSO are refused: they are seconds or
    milliseconds, not a TSO.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]+", text):
        ts = int(text)
        if ts > _MAX or (ts and physical_ms(ts) < 315_532_800_000):
            raise ValueError(
                f"{text} is not a TSO of our time; give the TSO as TiDB prints it, or a date-time like"
                " 2026-11-21T09:30:00"
            )
        return ts
    try:
        return from_datetime(datetime.fromisoformat(text))
    except ValueError as error:
        raise ValueError(
            f"{text!r} is neither a TSO (digits) nor an ISO date-time such as 2026-11-21T09:30:00+00:00"
        ) from error
