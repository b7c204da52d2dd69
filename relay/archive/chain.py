"""The chain of an archive's segments, for reading."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from sluice.relay.archive.catalogue import Catalogue, CatalogueDay, path_of
from sluice.relay.archive.segment import ArchiveSegment, day_of
from sluice.relay.errors import RelayGapError
from sluice.relay.overrides import Overrides
from sluice.relay.pipeline_folders import FOLDER, SubStorage
from sluice.relay.storage import Storage

__all__ = ["Chain"]


class Chain:
    """The segments of an archive, each beginning where the one before it ends."""

    def __init__(self, storage: Storage, catalogue: Catalogue | None = None) -> None:
        self.storage = storage
        self.catalogue = catalogue or Catalogue(storage)

    def overrides_of(self, pipeline: str = "") -> Overrides:
        """Return one pipeline's overrides of transactions and DDL inside of the archive.

        "" is the pipeline that has no name in the relay log (`sluice.relay.pipeline_folders`).
        """
        return Overrides(
            SubStorage(self.storage, f"{FOLDER}/{pipeline}") if pipeline else self.storage
        )

    @property
    def url(self) -> str:
        return self.storage.url

    def first(self) -> ArchiveSegment | None:
        """Return the oldest segment, None if there is none. Raises RelayCorruptError."""
        return next((day.segments[0] for day in self._days(0)), None)

    def last(self) -> ArchiveSegment | None:
        """Return the newest segment, None if there is none. Raises RelayCorruptError."""
        for name in reversed(self.catalogue.days()):
            day = self.catalogue.load(name)
            if day.segments:
                return day.segments[-1]
        return None

    def segments(
        self, from_ts: int | None = None, to_ts: int | None = None
    ) -> Iterator[ArchiveSegment]:
        """Yield the segments that hold commits in (from_ts, to_ts], in order.

        None: from the first, through the last.

        It ends with the last segment there is, which may end before `to_ts`. Raises RelayGapError
        where the chain is broken or begins behind `from_ts`, RelayCorruptError for a document that
        can't be read.
        """
        following = self.chain(from_ts or 0)
        first = next(following, None)
        if first is None:
            return
        if from_ts is not None and first.lo > from_ts:
            raise RelayGapError(
                f"{self.url}: the archive begins at {first.lo}, what was committed after {from_ts}"
                " isn't in it",
                hint="ask for a later moment, or restore what was removed from a copy",
            )
        segment: ArchiveSegment | None = first
        while segment is not None and (to_ts is None or segment.lo < to_ts):
            yield segment
            segment = next(following, None)

    def find(self, ts: int) -> ArchiveSegment | None:
        """Return the first segment with hi > ts, None if there is none.

        Its lo is greater than ts if the archive begins behind it. Raises RelayCorruptError.
        """
        return next(self.chain(ts), None)

    def chain(self, ts: int) -> Iterator[ArchiveSegment]:
        """Yield the segments with hi > ts, in order. Raises RelayGapError, RelayCorruptError."""
        before: ArchiveSegment | None = None
        for day in self._days(ts):
            for segment in day.segments:
                if before is not None and before.hi != segment.lo:
                    raise self._gap(before, segment)
                before = segment
                if segment.hi > ts:
                    yield segment

    def backwards(self, ts: int) -> Iterator[ArchiveSegment]:
        """Yield the segments with lo < ts, the newest first.

        Raises RelayGapError, RelayCorruptError.
        """
        later: ArchiveSegment | None = None
        names = self.catalogue.days()
        for name in reversed(names[: bisect.bisect_right(names, day_of(ts))]):
            for segment in reversed(self.catalogue.load(name).segments):
                if later is not None and segment.hi != later.lo:
                    raise self._gap(segment, later)
                later = segment
                if segment.lo < ts:
                    yield segment

    def missing_before(self) -> str:
        """Describe how days are missing before the chain's first segment, "" if none are.

        They are missing if that segment follows others that are gone without `Archive.remove`.
        Raises RelayCorruptError.
        """
        day = next(self._days(0), None)
        if day is None or day.follows is None:
            return ""
        return (
            f"{self.url}/{path_of(day.day)}: the archive begins at {day.segments[0].lo}, behind a"
            f" segment that ended at {day.follows}, and the days before are missing; restore their"
            " documents from a copy, or go on without the moments in them"
        )

    def _days(self, ts: int) -> Iterator[CatalogueDay]:
        """Yield the days that have segments, from the one that contains ts."""
        names = self.catalogue.days()
        at = max(bisect.bisect_right(names, day_of(ts)) - 1, 0)
        held = [self.catalogue.load(name) for name in names[at : at + 1]]
        while at > 0 and not (held[0].segments and held[0].segments[0].lo <= ts):
            at -= 1
            held.insert(0, self.catalogue.load(names[at]))
        yield from (day for day in held if day.segments)
        for name in names[at + len(held) :]:
            day = self.catalogue.load(name)
            if day.segments:
                yield day

    def _gap(self, before: ArchiveSegment, segment: ArchiveSegment) -> RelayGapError:
        return RelayGapError(
            f"{self.url}: no segment begins at {before.hi}, where the one of {path_of(before.day)}"
            f" ends, but in {path_of(segment.day)} one begins at {segment.lo}",
            hint=(
                f"restore the documents of the days from {before.day} through {segment.day} from a"
                " copy; moments before the hole, or behind a snapshot that lies after it, can be"
                " restored without them"
            ),
        )
