"""Archives made of relay logs by tests."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.relay import RelayLog
from sluice.relay.archive import Archive, ArchiveSegment, write_log
from sluice.relay.archive.window_merging import MergeLimits


def archive_all(
    relay: RelayLog,
    archive: Archive,
    sizes: Sequence[int] = (1000,),
    limits: MergeLimits | None = None,
) -> None:
    """Put the windows that are landed behind the archive's end into segments of so many windows
    each, over and over.
    """
    last = archive.last()
    windows = list(relay.windows(last.hi if last else 0))
    at = n = 0
    while at < len(windows):
        size = max(1, sizes[n % len(sizes)])
        written = write_log(
            relay.storage, archive.storage, windows[at : at + size], f"t{at}", limits=limits
        )
        archive.append(written.segment())
        at, n = at + size, n + 1


def merge_segments(
    archive: Archive, day: str, first: int, count: int, token: str
) -> ArchiveSegment:
    """Compact `count` segments of a day, from the one with that number on."""
    old = archive.begin_compaction(day, token).segments[first : first + count]
    windows = list(archive.log.windows(old[0].lo, old[-1].hi))
    written = write_log(archive.storage, archive.storage, windows, token)
    merged = written.segment(binlog_bytes=sum(segment.binlog_bytes for segment in old))
    archive.replace(old, merged)
    return merged
