"""The archive at a URL: reading it, and changing it."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sluice.relay.archive.catalogue import CatalogueDay, ReplacedFile, path_of
from sluice.relay.archive.chain import Chain
from sluice.relay.archive.segment import ArchiveSegment
from sluice.relay.archive.snapshots import SnapshotStore
from sluice.relay.errors import ArchiveConflictError, RelayError
from sluice.relay.format_version import refuse_newer
from sluice.relay.storage import open_storage
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.relay.archive.archive_log import ArchiveLog

__all__ = ["Archive"]


class Archive(Chain):
    """Any number of processes may read; writers exclude each other by compare-and-set."""

    @classmethod
    def open(cls, url: str) -> Archive:
        """Open the archive at `url` (``file:///dir``, or s3, gs, az); it need not exist yet.

        Raises RelayError.
        """
        storage = open_storage(url)
        refuse_newer(storage, "the archive")
        return cls(storage)

    @property
    def log(self) -> ArchiveLog:
        """Return the windows of all segments, for reading."""
        from sluice.relay.archive.archive_log import ArchiveLog  # loads Arrow

        return ArchiveLog(self.storage)

    @property
    def snapshots(self) -> SnapshotStore:
        """Return the archive's snapshots."""
        return SnapshotStore(self.storage)

    # Writing

    def append(self, segment: ArchiveSegment) -> None:
        """Append a segment, whose files are durable, to the chain.

        Raises ArchiveConflictError if the chain doesn't end where it begins, RelayError if it is of
        another cluster.
        """
        last = self.last()
        if last is not None:
            self._check_follows(last, segment)
        begins = False

        def add(day: CatalogueDay) -> CatalogueDay:
            nonlocal begins
            begins = not day.segments
            if begins:
                return day.changed(follows=None if last is None else last.hi, segments=(segment,))
            self._check_follows(day.segments[-1], segment)
            return day.changed(segments=(*day.segments, segment))

        self.catalogue.change(segment.day, add)
        if begins and not self._is_in_place(segment, has_one_before=last is not None):
            self.catalogue.change(
                segment.day, lambda day: day.changed(segments=_without_one(day.segments, segment))
            )
            raise ArchiveConflictError(
                f"{self.url}: the segment that begins at {segment.lo} came in between others:"
                " another process has archived meanwhile"
            )

    def _check_follows(self, last: ArchiveSegment, segment: ArchiveSegment) -> None:
        if last.cluster_id != segment.cluster_id:
            raise RelayError(
                f"{self.url}: the archive is of cluster {last.cluster_id}, and the segment that"
                f" begins at {segment.lo} of {segment.cluster_id}",
                hint="give each cluster an archive of its own: [archive] url",
            )
        if last.hi != segment.lo:
            raise ArchiveConflictError(
                f"{self.url}: the archive ends at {last.hi}, the segment to be appended begins at"
                f" {segment.lo}: another process has archived meanwhile"
            )

    def _is_in_place(self, segment: ArchiveSegment, *, has_one_before: bool) -> bool:
        """Return whether a segment that is the first of its day fits between its neighbours.

        A process that begins a day has no document to compare with. Two may begin an archive at
        once on different days. And one may have stood still until its day, and the end of the chain
        that it saw, were removed.
        """
        names = self.catalogue.days()
        at = bisect.bisect_left(names, segment.day)
        before = self._first_with_volumes(reversed(names[:at]))
        after = self._first_with_volumes(names[at + 1 :])
        follows = before.segments[-1].hi == segment.lo if before is not None else not has_one_before
        return follows and (
            after is None
            or after.segments[0].lo == self.catalogue.load(segment.day).segments[-1].hi
        )

    def _first_with_volumes(self, names: Iterable[str]) -> CatalogueDay | None:
        return next((day for day in map(self.catalogue.load, names) if day.segments), None)

    def begin_compaction(self, day: str, token: str) -> CatalogueDay:
        """Let `replace` take segments of that day only with this token, and return the day.

        An earlier compaction of the day can't finish any more.
        """
        return self.catalogue.change(day, lambda found: found.changed(compacting=token))

    def replace(self, old: Sequence[ArchiveSegment], new: ArchiveSegment) -> None:
        """Replace `old` segments, neighbours that cover the same range, by `new`.

        The files of `new` are durable, and its token has begun the compaction of that day. The
        files of `old` stay until `sweep`. Raises ArchiveConflictError, ValueError if the ranges
        differ.
        """
        if not old or (old[0].lo, old[-1].hi) != (new.lo, new.hi) or old[0].day != new.day:
            raise ValueError(
                f"the segment ({new.lo}, {new.hi}] doesn't cover the range of those that it is to"
                " replace"
            )
        kept = {file.path for file in new.files}
        last = self.last()
        now = max(_now_ms(), tso.physical_ms(last.hi) if last is not None else 0)
        gone = tuple(
            ReplacedFile(file.path, file.bytes, now)
            for segment in old
            for file in segment.files
            if file.path not in kept
        )

        def swap(day: CatalogueDay) -> CatalogueDay:
            at = day.segments.index(old[0]) if old[0] in day.segments else len(day.segments)
            if day.compacting != new.token or day.segments[at : at + len(old)] != tuple(old):
                raise ArchiveConflictError(
                    f"{self.url}: another process has changed {path_of(day.day)} while ({new.lo},"
                    f" {new.hi}] was compacted"
                )
            return day.changed(
                segments=(*day.segments[:at], new, *day.segments[at + len(old) :]),
                old=(*day.old, *gone),
            )

        self.catalogue.change(new.day, swap)

    def remove(self, before_ts: int) -> list[ArchiveSegment]:
        """Remove the segments with hi <= before_ts from the catalogue, and return them.

        It goes from the oldest on and never removes the newest one. Their files go with the next
        `sweep`. The caller makes sure that no reader needs them.
        """
        last = self.last()
        removed: list[ArchiveSegment] = []
        for name in self.catalogue.days():
            day = self.catalogue.load(name)
            gone = tuple(
                segment for segment in day.segments if segment.hi <= before_ts and segment != last
            )
            if gone:
                self.catalogue.change(name, lambda found, gone=gone: _without(found, gone))  # type: ignore[misc]
                removed += gone
            if len(gone) < len(day.segments):
                self.catalogue.change(
                    name,
                    lambda found: found if found.follows is None else found.changed(follows=None),
                )
                break
        return removed

    def sweep(
        self,
        grace_ms: int,
        read_since_ms: int | None = None,
        named: frozenset[str] = frozenset(),
    ) -> int:
        """Remove unused files and empty days, and return the number of files.

        A file goes once no segment has had it for `grace_ms` (0: as soon as no segment has it).
        `read_since_ms`: files that were replaced since then stay, as they may be read; so do the
        paths in `named`, which another catalog refers to.

        The earlier of this machine's time and the upstream's counts: a clock that jumps forward
        removes nothing early.
        """
        last = self.last()
        now = min(_now_ms(), tso.physical_ms(last.hi)) if last is not None else 0
        before = now - grace_ms if grace_ms else _MAX_MS
        if read_since_ms is not None:
            before = min(before, read_since_ms - 1)
        return sum(self._sweep_day(name, before, named) for name in self.catalogue.days())

    def _sweep_day(self, name: str, before_ms: int, named: frozenset[str]) -> int:
        day = self.catalogue.load(name)
        gone = {
            file
            for file in day.old
            if (file.since_ms <= before_ms or not file.since_ms) and file.path not in named
        }
        for file in gone:
            self.storage.remove(file.path)
        if gone:
            day = self.catalogue.change(
                name,
                lambda found: found.changed(
                    old=tuple(file for file in found.old if file not in gone)
                ),
            )
        if not day.segments and not day.old:
            self.catalogue.forget(name)
        return len(gone)


_MAX_MS = 1 << 62


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _without(day: CatalogueDay, gone: tuple[ArchiveSegment, ...]) -> CatalogueDay:
    old = tuple(
        ReplacedFile(file.path, file.bytes, 0) for segment in gone for file in segment.files
    )
    return day.changed(
        segments=tuple(segment for segment in day.segments if segment not in gone),
        old=(*day.old, *old),
    )


def _without_one(
    segments: tuple[ArchiveSegment, ...], one: ArchiveSegment
) -> tuple[ArchiveSegment, ...]:
    return tuple(segment for segment in segments if segment != one)
