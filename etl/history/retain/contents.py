"""Inspect what an archive holds: ranges of its chain, and the holes between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sluice.etl.history.retain.catalogue_summary import DaySummary, SegmentSummary
from sluice.relay import RelayCorruptError
from sluice.relay.archive import Archive, day_of
from sluice.relay.storage import Storage
from sluice.tidb import tso

__all__ = ["ArchiveContents", "ChainGap", "read_contents"]


@dataclass(frozen=True, slots=True)
class ChainGap:
    """A range `(lo, hi]` (TSO) that is missing from the archive.

    `why`, with the place.
    """

    lo: int
    hi: int
    why: str


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """The days of an archive that have segments, in order, and its holes."""

    days: tuple[DaySummary, ...]
    holes: tuple[ChainGap, ...]

    @property
    def segments(self) -> tuple[SegmentSummary, ...]:
        """Return all of them, in order."""
        return tuple(segment for day in self.days for segment in day.segments)

    @property
    def unbroken(self) -> tuple[SegmentSummary, ...]:
        """Return the segments behind the last hole."""
        after = max((hole.hi for hole in self.holes), default=0)
        return tuple(segment for segment in self.segments if segment.lo >= after)


def read_contents(archive: Archive, load: Callable[[str], DaySummary]) -> ArchiveContents:
    """Inspect the whole catalogue, and whether the log's files exist in their length.

    `load` returns a day of it. Damage is a hole, never an error. Raises OSError.
    """
    holes: list[ChainGap] = []
    days = tuple(_listed_days(archive, load, holes))
    segments = [segment for day in days for segment in day.segments]
    known = {hole.hi for hole in holes}
    for before, segment in itertools.pairwise(segments):
        if before.hi < segment.lo and segment.lo not in known:
            why = f"{archive.url}/days: no segment begins at {before.hi}, but one at {segment.lo}"
            holes.append(ChainGap(before.hi, segment.lo, why))
    holes += _missing_files(archive.storage, segments)
    return ArchiveContents(days, tuple(sorted(holes, key=lambda hole: hole.lo)))


def _listed_days(
    archive: Archive, load: Callable[[str], DaySummary], holes: list[ChainGap]
) -> Iterator[DaySummary]:
    """Yield the days that the catalogue names; add what can't be read of it to `holes`."""
    at: int | None = None
    unread = ""
    for name in archive.catalogue.days():
        try:
            day = load(name)
        except RelayCorruptError as error:
            unread = str(error)
            continue
        if not day.segments:
            continue
        first = day.segments[0]
        if unread or (at is None and day.follows is not None):
            why = unread or f"{archive.url}/days: what is before {day.day} is missing"
            holes.append(
                ChainGap(
                    at if at is not None else _chain_beginning(day.follows, first), first.lo, why
                )
            )
            unread = ""
        yield day
        at = day.segments[-1].hi
    if unread:
        holes.append(ChainGap(at or 0, max(at or 0, tso.wall_clock()), unread))


def _chain_beginning(follows: int | None, first: SegmentSummary) -> int:
    """Return where a hole at the beginning of all begins, as far as that is known."""
    return min(follows if follows is not None else 0, first.lo)


def _missing_files(storage: Storage, segments: Iterable[SegmentSummary]) -> Iterator[ChainGap]:
    sizes: dict[str, Mapping[str, int]] = {}
    for segment in segments:
        for path, size in segment.files:
            folder, _, name = path.rpartition("/")
            if folder not in sizes:
                sizes[folder] = storage.sizes(folder)
            found = sizes[folder].get(name)
            if found != size:
                what = "is missing" if found is None else f"has {found:,} bytes, not {size:,}"
                yield ChainGap(
                    segment.lo,
                    segment.hi,
                    f"{storage.url}/{path} {what} (segment of {day_of(segment.lo)})",
                )
