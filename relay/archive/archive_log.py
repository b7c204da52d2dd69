"""The windows of an archive, for reading as those of a relay log are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from sluice.relay.archive.catalogue import CachedCatalogue
from sluice.relay.archive.chain import Chain
from sluice.relay.archive.index import SegmentIndex, SegmentIndexCache
from sluice.relay.archive.segment import ArchiveSegment
from sluice.relay.errors import RelayCorruptError
from sluice.relay.overrides import Overrides
from sluice.relay.part import read_parts
from sluice.relay.storage import Storage, open_storage
from sluice.relay.window import WindowRecord

__all__ = ["ArchiveLog"]


class ArchiveLog:
    """A `relay.WindowLog`.

    One thread at a time may use it.

    Segments are merged while it is used, and windows of theirs may become one then. It keeps to
    what it has seen of a day, so that its windows never overlap. The files of replaced segments
    stay for some hours. Behind the end that it has seen it looks for more.
    """

    def __init__(
        self,
        storage: Storage,
        tables: Iterable[int] | None = None,
        indexes: SegmentIndexCache | None = None,
    ) -> None:
        """Create the archive log; `tables`: ids.

        Windows come with the row groups that hold changes of them only, and `changes` counts these.
        A row group may hold small tables beside them, and DDL comes whole. None: everything.
        `indexes`: to be shared.
        """
        self._storage = storage
        self._catalogue = CachedCatalogue(storage)
        self._chain = Chain(storage, self._catalogue)
        self._tables = None if tables is None else frozenset(tables)
        self._indexes = indexes or SegmentIndexCache()
        self.pipeline = ""
        """The pipeline whose overrides count, see `Chain.overrides_of`."""

    @classmethod
    def open(
        cls, url: str, tables: Iterable[int] | None = None, indexes: SegmentIndexCache | None = None
    ) -> ArchiveLog:
        """Open the archive at `url`. Raises RelayError."""
        return cls(open_storage(url), tables, indexes)

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def overrides(self) -> Overrides:
        """Return the overrides that were copied with the windows."""
        return self._chain.overrides_of(self.pipeline)

    def for_tables(self, tables: Iterable[int] | None) -> ArchiveLog:
        """Return the same log with these tables only (ids)."""
        log = ArchiveLog(self._storage, tables, self._indexes)
        log.pipeline = self.pipeline
        return log

    def first(self) -> WindowRecord | None:
        """Return the oldest window, None if the archive is empty. Raises RelayCorruptError."""
        return self.find(0)

    def last(self) -> WindowRecord | None:
        """Return the newest window, None if the archive is empty. Raises RelayCorruptError."""
        self._catalogue.refresh()
        segment = self._chain.last()
        if segment is None:
            return None
        index = self._index(segment)
        return index.window(len(index.windows) - 1, self._tables)

    def bounds(self) -> tuple[int, int] | None:
        """Return the TSO after which the archive begins, and that through which it goes.

        None if it is empty. Raises RelayCorruptError.
        """
        self._catalogue.refresh()
        first, last = self._chain.first(), self._chain.last()
        return None if first is None or last is None else (first.lo, last.hi)

    def next(self, lo: int) -> WindowRecord | None:
        """Return the window that begins at lo, None if none does.

        Raises RelayCorruptError, RelayGapError.
        """
        found = self.find(lo)
        return found if found is not None and found.lo == lo else None

    def find(self, ts: int) -> WindowRecord | None:
        """Return the first window with hi > ts.

        Its lo is greater than ts if the archive begins behind it: check it. Raises
        RelayCorruptError, RelayGapError.
        """
        segment = self._chain.find(ts)
        if segment is None:
            self._catalogue.refresh()
            segment = self._chain.find(ts)
        if segment is None:
            return None
        try:
            index = self._index(segment)
        except RelayCorruptError:  # a compaction may have replaced it, and its files are gone
            self._catalogue.clear()
            again = self._chain.find(ts)
            if again is None or again.index == segment.index:
                raise
            index = self._index(again)
        return index.window(index.number_of(ts), self._tables)

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[WindowRecord]:
        """Yield the windows that hold commits in (from_ts, to_ts], in order, from the oldest on.

        Without to_ts, through the newest at the time of the first `next`. Raises RelayGapError
        where the chain is broken, RelayCorruptError.
        """
        segments = self._between(from_ts, to_ts)
        if not segments or to_ts is None or segments[-1].hi < to_ts:
            self._catalogue.refresh()
            segments = self._between(from_ts, to_ts)
        for segment in segments:
            index = self._index(segment)
            for number, (lo, hi) in enumerate(index.bounds):
                if hi > from_ts and (to_ts is None or lo < to_ts):
                    yield index.window(number, self._tables)

    def backwards(self, through_ts: int, after_ts: int = 0) -> Iterator[WindowRecord]:
        """Yield the windows that hold commits in (after_ts, through_ts], the newest first.

        Raises RelayGapError, RelayCorruptError.
        """
        self._catalogue.refresh()
        for segment in self._chain.backwards(through_ts):
            if segment.hi <= after_ts:
                return
            index = self._index(segment)
            for number in reversed(range(len(index.bounds))):
                lo, hi = index.bounds[number]
                if hi > after_ts and lo < through_ts:
                    yield index.window(number, self._tables)

    def only(self, window: WindowRecord, tables: Iterable[int]) -> WindowRecord:
        """Return a window of this log with the row groups that hold changes of these tables (ids).

        Raises RelayCorruptError, RelayGapError.
        """
        segment = self._chain.find(window.lo)
        if segment is None:
            return window
        index = self._index(segment)
        return index.window(index.number_of(window.lo), frozenset(tables))

    def read(self, windows: Iterable[WindowRecord]) -> pa.Table:
        """Return the changes of windows in PART_SCHEMA, in commit order.

        Raises RelayCorruptError.
        """
        return read_parts(self._storage, [part for window in windows for part in window.parts])

    def _between(self, from_ts: int, to_ts: int | None) -> list[ArchiveSegment]:
        found = []
        for segment in self._chain.chain(from_ts):
            if to_ts is not None and segment.lo >= to_ts:
                break
            found.append(segment)
        return found

    def _index(self, segment: ArchiveSegment) -> SegmentIndex:
        return self._indexes.of(self._storage, segment.index)
