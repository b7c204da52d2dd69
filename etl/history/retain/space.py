"""Compute disk usage, its growth, and when the disk is full at that rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.etl.history.retain.catalogue_summary import SegmentSummary, SnapshotSummary, owner_of
from sluice.etl.history.retain.summaries import HourSizes
from sluice.relay import RelayLog, hour_of
from sluice.tidb import tso

__all__ = [
    "DiskUsage",
    "Growth",
    "archive_usage",
    "days_until_full",
    "relay_usage",
    "snapshots_usage",
]

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth in bytes a day, for `days` more; None: for ever.

    After that as much is removed as is added.
    """

    bytes_a_day: float
    days: float | None


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes on disk, and their growth."""

    bytes: int
    growth: Growth


def relay_usage(relay: RelayLog, keep_ms: int) -> DiskUsage:
    """Return the size of the relay log's parts and records. Raises RelayCorruptError, OSError."""
    first, last = relay.first(), relay.last()
    hours = HourSizes(relay.storage).all()
    size = sum(records + parts for records, parts in hours.values())
    if first is None or last is None:
        return DiskUsage(size, Growth(0.0, None))
    since = max(first.lo, last.hi - tso.span(_DAY_MS))
    lately = sum(parts for hour, (_, parts) in hours.items() if hour >= hour_of(since))
    # The first window begins at nought where all that the pumps had was landed.
    return DiskUsage(
        size,
        Growth(
            _bytes_per_day(lately, since, last.hi),
            _days_left(keep_ms, first.lo or first.hi, last.hi),
        ),
    )


def archive_usage(segments: Sequence[SegmentSummary], keep_ms: int, *, lake: bool) -> DiskUsage:
    """Return the size of the archive's log, or of its lake."""

    def taken(found: Iterable[SegmentSummary]) -> int:
        return sum(segment.lake_bytes if lake else segment.log_bytes for segment in found)

    if not segments:
        return DiskUsage(0, Growth(0.0, None))
    end = segments[-1].hi
    lately = [segment for segment in segments if segment.hi > end - tso.span(_DAY_MS)]
    first = segments[0]
    rate = _bytes_per_day(taken(lately), lately[0].lo or end - tso.span(_DAY_MS), end)
    return DiskUsage(taken(segments), Growth(rate, _days_left(keep_ms, first.lo or first.hi, end)))


def snapshots_usage(snapshots: Sequence[SnapshotSummary], keep_ms: int) -> DiskUsage:
    """Return all snapshots, a file that several refer to counted once.

    What they grow by is what the last one took of its own, as often as they were made of late.
    """
    there = {snapshot.id for snapshot in snapshots}
    left = {
        path: size
        for snapshot in snapshots
        for path, size in snapshot.others.items()
        if owner_of(path) not in there
    }
    size = sum(snapshot.own_bytes for snapshot in snapshots) + sum(left.values())
    if len(snapshots) < 2:
        return DiskUsage(size, Growth(0.0, None))
    last, before = snapshots[-1], snapshots[-2]
    between = max(tso.ms_between(before.ts, last.ts), _HOUR_MS)
    rate = last.own_bytes / between * _DAY_MS
    return DiskUsage(size, Growth(rate, _days_left(keep_ms, snapshots[0].ts, last.ts)))


def days_until_full(free: int, growths: Iterable[Growth]) -> float | None:
    """Return in how many days `free` bytes are used up.

    None: never, as removals make room for growth.
    """
    running = [growth for growth in growths if growth.bytes_a_day > 0 and growth.days != 0]
    left, day = float(free), 0.0
    while running:
        rate = sum(growth.bytes_a_day for growth in running)
        ends = min((growth.days for growth in running if growth.days is not None), default=None)
        if ends is None or left <= rate * (ends - day):
            return day + left / rate
        left -= rate * (ends - day)
        day = ends
        running = [growth for growth in running if growth.days is None or growth.days > day]
    return None


def _bytes_per_day(new: int, lo: int, hi: int) -> float:
    """Return bytes a day; what spans less than an hour is taken for an hour's."""
    return new / max(tso.ms_between(lo, hi), _HOUR_MS) * _DAY_MS


def _days_left(keep_ms: int, lo: int, hi: int) -> float | None:
    """Return for how many days nothing is removed yet, None for ever."""
    return max(0.0, (keep_ms - tso.ms_between(lo, hi)) / _DAY_MS) if keep_ms else None
