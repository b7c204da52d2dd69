"""The archive at a URL: reading it, and changing it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from relay.archive.archive_log import ArchiveLog
from relay.archive.base import Bases
from relay.archive.catalogue import Day, OldFile, path_of
from relay.archive.chain import Chain
from relay.archive.errors import ArchiveConflictError
from relay.archive.volume import Volume
from relay.errors import RelayError
from relay.storage import open_storage

__all__ = ["Archive"]


class Archive(Chain):
    """Any number of processes may read; writers exclude each other by compare-and-set."""

    @classmethod
    def open(cls, url: str) -> Archive:
        """Open the archive at `url` (``file:///dir``, or s3, gs, az); it need not exist yet. Raises RelayError."""
        return cls(open_storage(url))

    @property
    def log(self) -> ArchiveLog:
        """The windows of all volumes, for reading."""
        return ArchiveLog(self.storage)

    @property
    def bases(self) -> Bases:
        """Its bases."""
        return Bases(self.storage)

    # Writing

    def append(self, volume: Volume) -> None:
        """Put a volume, whose files are durable, at the chain's end. Raises ArchiveConflictError if the chain doesn't
        end where it begins, RelayError if it is of another cluster.
        """
        last = self.last()
        if last is not None:
            self._check_follows(last, volume)
        follows = last.hi if last is not None else None

        def add(day: Day) -> Day:
            if not day.volumes:
                return day.changed(follows=follows, volumes=(volume,))
            self._check_follows(day.volumes[-1], volume)
            return day.changed(volumes=(*day.volumes, volume))

        self.catalogue.change(volume.day, add)
        if last is None:
            self._check_only(volume)

    def _check_follows(self, last: Volume, volume: Volume) -> None:
        if last.cluster_id != volume.cluster_id:
            raise RelayError(
                f"{self.url}: the archive is of cluster {last.cluster_id}, and the volume that begins at {volume.lo} of"
                f" {volume.cluster_id}",
                way_out="give each cluster an archive of its own: [archive] url",
            )
        if last.hi != volume.lo:
            raise ArchiveConflictError(
                f"{self.url}: the archive ends at {last.hi}, the volume to be appended begins at {volume.lo}: another"
                " process has archived meanwhile"
            )

    def _check_only(self, volume: Volume) -> None:
        """Two may have begun an archive at once, on different days: who sees it gives way."""
        if [found.token for found in self.chain(0)][:1] != [volume.token]:
            self.catalogue.change(
                volume.day, lambda day: day.changed(volumes=tuple(v for v in day.volumes if v != volume))
            )
            raise ArchiveConflictError(f"{self.url}: another process has begun the archive at the same time")

    def begin_compaction(self, day: str, token: str) -> Day:
        """From now on `replace` takes volumes of that day only with that token; what the day holds. Whoever compacted
        before can't finish it.
        """
        return self.catalogue.change(day, lambda found: found.changed(compacting=token))

    def replace(self, old: Sequence[Volume], new: Volume) -> None:
        """Put `new`, whose files are durable and whose token has begun the compaction of that day, in the place of
        `old` volumes, which are neighbours and cover the same range. Their files stay until `sweep`. Raises
        ArchiveConflictError, ValueError if the ranges differ.
        """
        if not old or (old[0].lo, old[-1].hi) != (new.lo, new.hi) or old[0].day != new.day:
            raise ValueError(f"the volume ({new.lo}, {new.hi}] doesn't cover the range of those it is to replace")
        kept = {file.path for file in new.files}
        now = time.time_ns() // 1_000_000
        gone = tuple(
            OldFile(file.path, file.bytes, now) for volume in old for file in volume.files if file.path not in kept
        )

        def swap(day: Day) -> Day:
            at = day.volumes.index(old[0]) if old[0] in day.volumes else len(day.volumes)
            if day.compacting != new.token or day.volumes[at : at + len(old)] != tuple(old):
                raise ArchiveConflictError(
                    f"{self.url}: another process has changed {path_of(day.day)} while ({new.lo}, {new.hi}] was"
                    " compacted"
                )
            return day.changed(volumes=(*day.volumes[:at], new, *day.volumes[at + len(old) :]), old=(*day.old, *gone))

        self.catalogue.change(new.day, swap)

    def remove(self, before_ts: int) -> list[Volume]:
        """Remove the volumes with hi <= before_ts from the catalogue, oldest first, never the newest one; their files
        go with the next `sweep`. What was removed. The caller makes sure that nobody needs them.
        """
        last = self.last()
        removed: list[Volume] = []
        for name in self.catalogue.days():
            day = self.catalogue.load(name)
            gone = tuple(volume for volume in day.volumes if volume.hi <= before_ts and volume != last)
            if gone:
                self.catalogue.change(name, lambda found, gone=gone: _without(found, gone))  # type: ignore[misc]
                removed += gone
            if len(gone) < len(day.volumes):
                self.catalogue.change(
                    name, lambda found: found if found.follows is None else found.changed(follows=None)
                )
                break
        return removed

    def sweep(self, grace_ms: int) -> int:
        """Remove files that no volume has had for `grace_ms`, and days that hold nothing any more; how many files."""
        before = time.time_ns() // 1_000_000 - grace_ms
        return sum(self._sweep_day(name, before) for name in self.catalogue.days())

    def _sweep_day(self, name: str, before_ms: int) -> int:
        day = self.catalogue.load(name)
        gone = {file for file in day.old if file.since_ms <= before_ms}
        for file in gone:
            self.storage.remove(file.path)
        if gone:
            day = self.catalogue.change(
                name, lambda found: found.changed(old=tuple(file for file in found.old if file not in gone))
            )
        if not day.volumes and not day.old:
            self.catalogue.forget(name)
        return len(gone)


def _without(day: Day, gone: tuple[Volume, ...]) -> Day:
    old = tuple(OldFile(file.path, file.bytes, 0) for volume in gone for file in volume.files)
    return day.changed(volumes=tuple(volume for volume in day.volumes if volume not in gone), old=(*day.old, *old))
