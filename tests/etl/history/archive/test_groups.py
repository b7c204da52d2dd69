"""How many files a day has, whatever the traffic, and how often a change is written again."""

from __future__ import annotations

import itertools
import random

import pytest

from sluice.etl.history.archive.compaction_policy import (
    LARGE_BYTES,
    MAX_SEGMENT_BYTES,
    compaction_groups,
)
from sluice.relay.archive import ArchiveFile, ArchiveSegment

MIB = 2**20
SMALL = 256 * 2**10
"""What costs hardly anything may be written each time."""


def segment(lo: int, hi: int, size: int) -> ArchiveSegment:
    file = ArchiveFile(f"log/{lo}", size, 1, 0)
    return ArchiveSegment(lo, hi, 1, "t", 0, 1, 1, 1, 1, size, file, file)


def day(sizes: list[int]) -> tuple[list[int], int, list[ArchiveSegment]]:
    """Volumes that come one after another, and are compacted after every fifteen: how many there
    were at each time, bytes written again while the day lasted, and what is left when it is over.
    """
    segments: list[ArchiveSegment] = []
    counts, written = [], 0

    def compacted(*, is_over: bool) -> None:
        nonlocal written
        while found := compaction_groups(segments, is_over=is_over):
            for group in found:
                at = segments.index(group[0])
                size = sum(one.log.bytes for one in group if one.log)
                assert (
                    segments[at : at + len(group)] == group
                    and len(group) > 1
                    and size <= MAX_SEGMENT_BYTES
                )
                segments[at : at + len(group)] = [segment(group[0].lo, group[-1].hi, size)]
                written += size

    for number, size in enumerate(sizes):
        segments.append(segment(number, number + 1, size))
        if number % 15 == 14:
            compacted(is_over=False)
            counts.append(len(segments))
    again = written
    compacted(is_over=True)
    return counts, again, segments


@pytest.mark.parametrize("size", [300, 5_000, 60_000, 400_000, 3 * MIB, 8 * MIB])
def test_a_day_of_passes_each_minute_never_has_over_fifty_partial_segments_and_ends_with_few(
    size,
):
    chance = random.Random(size)
    sizes = [chance.randrange(size // 2, size * 2) for _ in range(1440)]
    counts, again, left = day(sizes)
    assert max(counts) + 15 <= 50 + sum(sizes) // MAX_SEGMENT_BYTES
    assert again <= 4 * sum(sizes) + len(counts) * SMALL
    assert len(left) == 1 or all(one.log.bytes >= LARGE_BYTES for one in left[:-1])
    assert (left[0].lo, left[-1].hi) == (0, 1440)


def test_segments_of_any_sizes_are_compacted_to_an_end_without_a_hole():
    chance = random.Random(3)
    for _ in range(20):
        sizes = [chance.choice([0, 300, 9_000, 2 * MIB, 90 * MIB, 400 * MIB]) for _ in range(200)]
        _, _, left = day(sizes)
        assert all(before.hi == after.lo for before, after in itertools.pairwise(left))
        assert sum(one.log.bytes for one in left) == sum(sizes)


def test_large_segments_stay_as_they_are():
    for is_over in (False, True):
        assert (
            compaction_groups([segment(n, n + 1, LARGE_BYTES) for n in range(30)], is_over=is_over)
            == []
        )
