"""Plan which landed windows become a segment.

A segment is whole windows, as many as its files should hold, and begins and ends on one UTC day,
but for its last window, which may reach into the next; and but for the first one of all, if landing
began at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sluice.relay import RecordEncoder, WindowRecord, decode_text, encode_text, read_records
from sluice.relay.archive import day_of

MAX_PLAN_BYTES = 384 * 2**20
"""Bytes of the relay log's parts that go into a segment: what they become is smaller than half."""
_MAX_CHARACTERS = 16 * 2**20  # of their records: they travel to a worker inside of a Spark plan
_MAX_WINDOWS = 20_000


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The windows of a segment, each beginning where the one before ends."""

    windows: tuple[WindowRecord, ...]
    records: bytes
    """The windows' whole records, for a worker: see `windows_of`."""
    bytes: int
    """Bytes of the relay log's parts."""

    @classmethod
    def from_windows(cls, windows: Sequence[WindowRecord], size: int) -> SegmentPlan:
        """Plan a segment of windows with `size` bytes in their parts."""
        text = RecordEncoder()
        for window in windows:
            text.add(window.to_dict())
        return cls.from_records(windows, text, size)

    @classmethod
    def from_records(
        cls, windows: Sequence[WindowRecord], text: RecordEncoder, size: int
    ) -> SegmentPlan:
        """Plan a segment of windows whose records are in `text`."""
        return cls(tuple(windows), encode_text(text.to_text()), size)

    @property
    def lo(self) -> int:
        return self.windows[0].lo

    @property
    def hi(self) -> int:
        return self.windows[-1].hi

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing was committed in it."""
        return not any(window.parts or window.ddls or window.skipped for window in self.windows)


def plan_segments(
    windows: Iterable[WindowRecord], max_bytes: int = MAX_PLAN_BYTES
) -> Iterator[SegmentPlan]:
    """Yield segments of windows that follow one another, each as soon as it is full.

    A segment's parts have at most `max_bytes`, unless it is a single window.
    """
    chosen: list[WindowRecord] = []
    text = RecordEncoder()
    held = 0
    for window in windows:
        size = sum(part.bytes for part in window.parts)
        full = (
            held + size > max_bytes
            or text.characters >= _MAX_CHARACTERS
            or len(chosen) >= _MAX_WINDOWS
            or (chosen and chosen[0].lo > 0 and day_of(window.lo) != day_of(chosen[0].lo))
        )
        if chosen and full:
            yield SegmentPlan.from_records(chosen, text, held)
            chosen, text, held = [], RecordEncoder(), 0
        chosen.append(window)
        text.add(window.to_dict())
        held += size
    if chosen:
        yield SegmentPlan.from_records(chosen, text, held)


def windows_of(records: bytes) -> list[WindowRecord]:
    """Decode the windows of a plan from its records.

    Raises ValueError if they were damaged on the way.
    """
    found, _ = read_records(decode_text(records))
    return [WindowRecord.from_dict(record) for record in found]
