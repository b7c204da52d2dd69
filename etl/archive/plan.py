"""Which landed windows become a volume.

A volume is whole windows, as many as its files should hold, and begins and ends on one UTC day, but for its last
window, which may reach into the next; and but for the first one of all, if landing began at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from relay import Window
from relay.archive import day_of

MAX_BYTES = 384 * 2**20
"""Bytes of the relay log's parts that go into a volume: what they become is smaller than half."""
_MAX_RECORD_BYTES = 16 * 2**20  # they travel to a worker inside of a Spark plan
_MAX_WINDOWS = 20_000


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """What a volume is made of: windows, each beginning where the one before ends, and their records as one text."""

    windows: tuple[Window, ...]
    records: bytes
    bytes: int
    """Of the relay log's parts."""

    @property
    def lo(self) -> int:
        return self.windows[0].lo

    @property
    def hi(self) -> int:
        return self.windows[-1].hi

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was committed in it."""
        return not any(window.parts or window.ddls or window.skipped for window in self.windows)


def plan_volumes(windows: Iterable[Window], max_bytes: int = MAX_BYTES) -> Iterator[VolumePlan]:
    """Volumes of windows that follow one another, each as soon as it is full. Its parts have at most `max_bytes`,
    unless it is a single window.
    """
    chosen: list[Window] = []
    records: list[bytes] = []
    held = described = 0
    for window in windows:
        record = window.to_json()
        size = sum(part.bytes for part in window.parts)
        full = (
            held + size > max_bytes
            or described + len(record) > _MAX_RECORD_BYTES
            or len(chosen) >= _MAX_WINDOWS
            or (chosen and chosen[0].lo > 0 and day_of(window.lo) != day_of(chosen[0].lo))
        )
        if chosen and full:
            yield VolumePlan(tuple(chosen), b"".join(records), held)
            chosen, records, held, described = [], [], 0, 0
        chosen.append(window)
        records.append(record)
        held += size
        described += len(record)
    if chosen:
        yield VolumePlan(tuple(chosen), b"".join(records), held)


def windows_of(records: bytes) -> list[Window]:
    """The windows of a plan, from its records. Raises ValueError as `Window.from_json`."""
    return [Window.from_json(line) for line in records.splitlines()]
