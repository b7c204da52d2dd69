"""Choose the segments of a day that are compacted together.

A day of passes every minute has more than a thousand small segments, each with a file for every
table that was changed. Eight neighbours of about the same size become one, and eight of these
again, so what is written is rewritten three or four times in all, and a day never has more than
some forty. When the day is over, what is left of it becomes as few as the largest size allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluice.relay.archive import ArchiveSegment

__all__ = ["LARGE_BYTES", "MAX_SEGMENT_BYTES", "compaction_groups"]

MAX_SEGMENT_BYTES = 512 * 2**20
"""Maximum size of a log file that compaction writes."""
LARGE_BYTES = 256 * 2**20
"""A segment with a log file of this size stays as it is."""
_TIER_FACTOR = 8
_SMALL_BYTES = 256 * 2**10


def compaction_groups(
    segments: Sequence[ArchiveSegment], *, is_over: bool
) -> list[list[ArchiveSegment]]:
    """Return neighbours among the segments of a day (ascending) that are to become one each.

    At least two each. `is_over`: no more will come.
    """
    if is_over:
        found = _pack_run(segments)
        return [group for group in found if len(group) > 1 and min(map(_size, group)) < LARGE_BYTES]
    for tier in range(_tier(LARGE_BYTES) + 1):
        found = [
            group
            for run in _runs(segments, tier)
            for group in _pack_run(run)
            if _is_enough(group, tier)
        ]
        if found:
            return found
    return []


def _is_enough(group: Sequence[ArchiveSegment], tier: int) -> bool:
    """Return whether rewriting the group is worth it.

    It is for eight segments of this tier, or if one large segment comes of them.
    """
    alike = sum(_tier(_size(segment)) == tier for segment in group)
    return alike >= _TIER_FACTOR or (len(group) > 1 and sum(map(_size, group)) >= LARGE_BYTES)


def _size(segment: ArchiveSegment) -> int:
    return segment.log.bytes if segment.log is not None else 0


def _tier(size: int) -> int:
    """Return how often eight of the smallest have become one."""
    tier = 0
    while size > _SMALL_BYTES:
        size //= _TIER_FACTOR
        tier += 1
    return tier


def _runs(segments: Sequence[ArchiveSegment], tier: int) -> Iterator[list[ArchiveSegment]]:
    """Yield runs of neighbours of this tier or below."""
    run: list[ArchiveSegment] = []
    for segment in segments:
        if _tier(_size(segment)) <= tier and _size(segment) < LARGE_BYTES:
            run.append(segment)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _pack_run(run: Sequence[ArchiveSegment]) -> list[list[ArchiveSegment]]:
    """Group neighbours as long as a group fits a segment."""
    found: list[list[ArchiveSegment]] = []
    held = 0
    for segment in run:
        if not found or held + _size(segment) > MAX_SEGMENT_BYTES:
            found.append([])
            held = 0
        found[-1].append(segment)
        held += _size(segment)
    return found
