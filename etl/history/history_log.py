"""Read the history: the archive as far as it goes, the relay log from there on."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sluice.etl.history.clear_values import ClearValues
from sluice.etl.history.errors import EmptyHistoryError, FindError
from sluice.etl.settings import Settings
from sluice.relay import RelayLog, WindowLog, WindowRecord
from sluice.relay.archive import Archive, ArchiveLog, Pin, Pins, SegmentIndexCache
from sluice.tidb import tso


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of a log: what was committed after `since` through `until` (TSO)."""

    log: WindowLog
    since: int
    until: int

    @property
    def url(self) -> str:
        return self.log.url

    def windows(self) -> Iterator[WindowRecord]:
        """Yield the windows. Raises RelayGapError, RelayCorruptError."""
        return self.log.windows(self.since, self.until)

    def only(self, ids_of: Callable[[WindowRecord], set[int]]) -> LogRange:
        """Return the same range, of which only some tables are read if the log can separate them.

        These are the tables with ids that `ids_of` returns for any of the windows. Raises as
        `windows`.
        """
        if not isinstance(self.log, ArchiveLog):
            return self
        wanted = {table_id for window in self.windows() for table_id in ids_of(window)}
        return replace(self, log=self.log.for_tables(wanted))


@dataclass(frozen=True, slots=True)
class HistoryLog:
    """The windows of archive and relay log, from `first` (TSO) through `last`.

    `archived`: what of it the archive has.
    """

    settings: Settings
    first: int
    last: int
    archived: tuple[int, int] = (0, 0)
    indexes: SegmentIndexCache | None = field(default=None, compare=False, repr=False)
    gap: tuple[int, int] | None = None
    """The range that neither of the two logs has."""

    @classmethod
    def open(
        cls,
        settings: Settings,
        indexes: SegmentIndexCache | None = None,
        *,
        shows_values: bool = True,
    ) -> HistoryLog:
        """Open the logs; `indexes`: a cache of the archive's, for repeated searches.

        `shows_values`: False for callers that show no values of rows. For others the log of a
        pipeline with masks begins where its windows are masked. Raises FindError if there is
        nothing, or something is missing in between; ClearValuesError; relay errors.
        """
        clear = ClearValues.of(settings, "the history of changes") if shows_values else None
        found = cls.load(settings, indexes)
        if found is None:
            raise EmptyHistoryError(
                f"the relay log {settings.relay.url} is empty: nothing has landed yet"
            )
        if found.gap is not None:
            middle, gap = found.gap
            raise FindError(
                f"{settings.archive_url} and {settings.relay.url}: what was committed after"
                f" {tso.text(middle)} through {tso.text(gap)} is in neither of them",
                hint=f"look at one side of it: --until {middle}, or --since {gap}",
            )
        if clear is not None and clear.since_ts > found.first:
            return replace(found, first=clear.since_ts)
        return found

    @classmethod
    def load(
        cls, settings: Settings, indexes: SegmentIndexCache | None = None
    ) -> HistoryLog | None:
        """Return what there is, also with a gap in between; None if there is nothing.

        Raises relay errors.
        """
        relay, archive = (
            settings.open_relay(),
            ArchiveLog.open(settings.archive_url, indexes=indexes),
        )
        archived = archive.bounds()
        ranges = [found for found in (archived, _bounds(relay)) if found]
        if not ranges:
            return None
        (begin, middle), (gap, end) = min(ranges), max(ranges)
        between = (middle, gap) if middle < gap else None
        return cls(settings, begin, max(middle, end), archived or (0, 0), indexes, between)

    @contextlib.contextmanager
    def held(self, what: str, since: int) -> Iterator[None]:
        """Pin the archive after `since` (TSO), until the context ends.

        `what` describes the reader. Raises RemovedError if it is being removed, relay errors,
        OSError.
        """
        begin, end = self.archived
        if since >= end:
            yield
            return
        with pinned(Archive.open(self.settings.archive_url), "find", what, max(since, begin)):
            yield

    def ranges(self, since: int, until: int) -> list[LogRange]:
        """Return the ranges that hold (since, until], ascending: first the archive's.

        Raises relay errors.
        """
        since, until = max(since, self.first), min(until, self.last)
        begin, end = self.archived
        relay = self.settings.open_relay()
        archive = ArchiveLog.open(self.settings.archive_url, indexes=self.indexes)
        parts: list[tuple[WindowLog, int, int]] = [
            (relay, 0, begin),
            (archive, begin, end),
            (relay, end, until),
        ]
        cut = [LogRange(log, max(since, first), min(until, last)) for log, first, last in parts]
        return [stretch for stretch in cut if stretch.since < stretch.until]


@contextlib.contextmanager
def pinned(
    archive: Archive, reader: str, what: str, since: int, snapshots: Sequence[str] = ()
) -> Iterator[None]:
    """Pin the archive after `since` (TSO), and `snapshots` (ids), until the context ends.

    `reader` begins the pin's name, `what` describes the reader. Raises RemovedError if it is being
    removed, relay errors, OSError.
    """
    with Pins(archive.storage).held(
        f"{reader}-{secrets.token_hex(6)}", Pin(what, since, tuple(snapshots))
    ):
        yield


def _bounds(relay: RelayLog) -> tuple[int, int] | None:
    first, last = relay.first(), relay.last()
    return (first.lo, last.hi) if first and last else None
