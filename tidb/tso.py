"""TiDB's timestamps (TSO): `physical_ms << 18 | logical`.

physical is in Unix milliseconds, logical below 2^18. All arithmetic with them is here. Distances
between two of them are TSO too (`span`), so a limit can be added to a timestamp, or an array of
them, without taking it apart.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

LOGICAL_BITS = 18
_LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX = (1 << 63) - 1  # timestamps travel as int64 in binlogs
_FIRST_MS = 315_532_800_000  # 1980: TiDB is younger


def compose(physical_ms: int, logical: int = 0) -> int:
    """Return the TSO of a physical time (Unix ms) and a logical counter.

    ValueError if either is out of range.
    """
    if not 0 <= logical <= _LOGICAL_MASK:
        raise ValueError(
            f"the logical part of a TSO is between 0 and {_LOGICAL_MASK}, not {logical}"
        )
    if not 0 <= physical_ms <= _MAX >> LOGICAL_BITS:
        raise ValueError(f"{physical_ms} ms is outside what a TSO can hold")
    return physical_ms << LOGICAL_BITS | logical


FIRST = compose(_FIRST_MS)
"""The least plausible timestamp: a smaller number is a job id, seconds or milliseconds."""


def physical_ms(ts: int) -> int:
    """Return the physical part of a TSO: Unix milliseconds."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """Return the logical counter of a TSO."""
    return ts & _LOGICAL_MASK


def last_of_ms(ts: int) -> int:
    """Return the last TSO of a TSO's millisecond."""
    return ts | _LOGICAL_MASK


def span(ms: int) -> int:
    """Return `ms` milliseconds as a TSO distance, to be added or subtracted; may be negative."""
    return ms << LOGICAL_BITS


def ms_between(earlier: int, later: int) -> int:
    """Return milliseconds from one TSO to another; negative if `later` is the earlier one."""
    return (later >> LOGICAL_BITS) - (earlier >> LOGICAL_BITS)


def wall_clock() -> int:
    """Return the first TSO of this millisecond by this machine's clock."""
    return time.time_ns() // 1_000_000 << LOGICAL_BITS


def from_datetime(moment: datetime) -> int:
    """Return the smallest TSO of a moment, cut to milliseconds.

    A datetime without a zone is taken as UTC.
    """
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return compose((moment - _EPOCH) // timedelta(milliseconds=1))


def to_datetime(ts: int) -> datetime:
    """Return the physical part of a TSO as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=physical_ms(ts))


def time_text(ts: int) -> str:
    """Return the physical part as people read it: `2026-11-21 09:30:00.000 UTC`."""
    return f"{to_datetime(ts).replace(tzinfo=None).isoformat(' ', 'milliseconds')} UTC"


def text(ts: int) -> str:
    """Return a TSO and its time: `466410000000000000 (2026-11-21 09:30:00.000 UTC)`."""
    return f"{ts} ({time_text(ts)})"
