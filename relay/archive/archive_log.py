"""The windows of an archive, for reading as those of a relay log are read."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

import pyarrow as pa

from relay.archive.catalogue import RememberedCatalogue
from relay.archive.chain import Chain
from relay.archive.index import Index, read_index
from relay.archive.volume import Volume
from relay.decisions import Decisions
from relay.errors import RelayCorruptError
from relay.part import read_parts
from relay.storage import Storage, open_storage
from relay.window import Window

__all__ = ["ArchiveLog"]

_INDEXES = 4


class ArchiveLog:
    """A `relay.WindowLog`. One thread at a time may use it.

    Volumes are merged while it is used, and windows of theirs may become one then. It keeps to what it has seen of a
    day, so that its windows never overlap; the files of volumes that were replaced stay for some hours. Behind the end
    that it has seen it looks for more.
    """

    def __init__(self, storage: Storage, tables: Iterable[int] | None = None) -> None:
        """`tables`: ids; windows come with the row groups that hold changes of them only, and `changes` counts these. A
        row group may hold small tables beside them, and DDL comes whole. None: everything.
        """
        self._storage = storage
        self._catalogue = RememberedCatalogue(storage)
        self._chain = Chain(storage, self._catalogue)
        self._tables = None if tables is None else frozenset(tables)
        self._indexes: dict[str, Index] = {}

    @classmethod
    def open(cls, url: str, tables: Iterable[int] | None = None) -> ArchiveLog:
        """Of the archive at `url`. Raises RelayError."""
        return cls(open_storage(url), tables)

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def decisions(self) -> Decisions:
        """As they were carried over with the windows."""
        return self._chain.decisions

    def for_tables(self, tables: Iterable[int] | None) -> ArchiveLog:
        """The same log with these tables only (ids)."""
        return ArchiveLog(self._storage, tables)

    def first(self) -> Window | None:
        """The oldest window, None if the archive is empty. Raises RelayCorruptError."""
        return self.find(0)

    def last(self) -> Window | None:
        """The newest window, None if the archive is empty. Raises RelayCorruptError."""
        self._catalogue.renew()
        volume = self._chain.last()
        if volume is None:
            return None
        index = self._index(volume)
        return index.window(len(index.windows) - 1, self._tables)

    def next(self, lo: int) -> Window | None:
        """The window that begins at lo; None if none does. Raises RelayCorruptError, RelayGapError."""
        found = self.find(lo)
        return found if found is not None and found.lo == lo else None

    def find(self, ts: int) -> Window | None:
        """The first window with hi > ts. Its lo is greater than ts if the archive begins behind it: check it. Raises
        RelayCorruptError, RelayGapError.
        """
        volume = self._chain.find(ts)
        if volume is None:
            self._catalogue.renew()
            volume = self._chain.find(ts)
        if volume is None:
            return None
        try:
            index = self._index(volume)
        except RelayCorruptError:  # replaced so long ago that its files are gone, if it was
            self._catalogue.forget_seen()
            again = self._chain.find(ts)
            if again is None or again.index == volume.index:
                raise
            index = self._index(again)
        number = bisect.bisect_right(index.windows, ts, key=lambda entry: entry.window.hi)
        return index.window(number, self._tables)

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[Window]:
        """The windows that hold commits in (from_ts, to_ts], in order, from the first there is; without to_ts, all that
        there are when the first is asked for. Raises RelayGapError where the chain is broken, RelayCorruptError.
        """
        volumes = self._between(from_ts, to_ts)
        if not volumes or to_ts is None or volumes[-1].hi < to_ts:
            self._catalogue.renew()
            volumes = self._between(from_ts, to_ts)
        for volume in volumes:
            index = self._index(volume)
            for number, entry in enumerate(index.windows):
                if entry.window.hi > from_ts and (to_ts is None or entry.window.lo < to_ts):
                    yield index.window(number, self._tables)

    def read(self, windows: Iterable[Window]) -> pa.Table:
        """The changes of windows in PART_SCHEMA by (commit_ts, position). Raises RelayCorruptError."""
        return read_parts(self._storage, [part for window in windows for part in window.parts])

    def _between(self, from_ts: int, to_ts: int | None) -> list[Volume]:
        found = []
        for volume in self._chain.chain(from_ts):
            if to_ts is not None and volume.lo >= to_ts:
                break
            found.append(volume)
        return found

    def _index(self, volume: Volume) -> Index:
        path = volume.index.path
        found = self._indexes.get(path)
        if found is None:
            found = read_index(self._storage, volume.index)
            while len(self._indexes) >= _INDEXES:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[path] = found
        return found
