"""The windows of an archive, for reading as those of a relay log are read."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

import pyarrow as pa

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
    """A `relay.WindowLog`. One thread at a time may use it; what it has read of the catalogue it asks for again when
    that doesn't reach far enough.
    """

    def __init__(self, chain: Chain, tables: Iterable[int] | None = None) -> None:
        """`tables`: ids; windows come with the row groups that hold changes of them only, and `changes` counts these. A
        row group may hold small tables beside them, and DDL comes whole. None: everything.
        """
        self._chain = chain
        self._tables = None if tables is None else frozenset(tables)
        self._volumes: list[Volume] = []
        """A stretch of the chain that has been read."""
        self._indexes: dict[str, Index] = {}

    @classmethod
    def open(cls, url: str, tables: Iterable[int] | None = None) -> ArchiveLog:
        """Of the archive at `url`. Raises RelayError."""
        return cls(Chain(open_storage(url)), tables)

    @property
    def url(self) -> str:
        return self._chain.url

    @property
    def storage(self) -> Storage:
        return self._chain.storage

    @property
    def decisions(self) -> Decisions:
        """As they were archived with the windows."""
        return self._chain.decisions

    def for_tables(self, tables: Iterable[int] | None) -> ArchiveLog:
        """The same log with these tables only (ids)."""
        return ArchiveLog(self._chain, tables)

    def first(self) -> Window | None:
        """The oldest window, None if the archive is empty. Raises RelayCorruptError."""
        volume = self._chain.first()
        return None if volume is None else self._window(volume, 0)

    def last(self) -> Window | None:
        """The newest window, None if the archive is empty. Raises RelayCorruptError."""
        volume = self._chain.last()
        return None if volume is None else self._window(volume, -1)

    def next(self, lo: int) -> Window | None:
        """The window that begins at lo; None if none does. Raises RelayCorruptError, RelayGapError."""
        found = self.find(lo)
        return found if found is not None and found.lo == lo else None

    def find(self, ts: int) -> Window | None:
        """The first window with hi > ts. Its lo is greater than ts if the archive begins behind it: check it. Raises
        RelayCorruptError, RelayGapError.
        """
        volume = self._volume(ts)
        if volume is None:
            return None
        index = self._index(volume)
        number = bisect.bisect_right(index.windows, ts, key=lambda entry: entry.window.hi)
        return index.window(number, self._tables)

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[Window]:
        """The windows that hold commits in (from_ts, to_ts], in order, from the first there is; without to_ts, all.
        Raises RelayGapError where the chain is broken, RelayCorruptError.
        """
        window = self.find(from_ts)
        while window is not None and (to_ts is None or window.lo < to_ts):
            yield window
            window = self.find(window.hi)

    def read(self, windows: Iterable[Window]) -> pa.Table:
        """The changes of windows in PART_SCHEMA by (commit_ts, position). Raises RelayCorruptError."""
        return read_parts(self.storage, [part for window in windows for part in window.parts])

    def _volume(self, ts: int) -> Volume | None:
        for _ in range(2):
            at = bisect.bisect_right(self._volumes, ts, key=lambda volume: volume.hi)
            if at < len(self._volumes) and self._volumes[at].lo <= ts:
                return self._volumes[at]
            self._volumes = self._stretch(ts)
        return self._volumes[0] if self._volumes else None

    def _stretch(self, ts: int) -> list[Volume]:
        """The volumes from the one in which ts is through the last of its day."""
        stretch: list[Volume] = []
        for volume in self._chain.chain(ts):
            if stretch and volume.day != stretch[0].day:
                break
            stretch.append(volume)
        return stretch

    def _window(self, volume: Volume, number: int) -> Window:
        return self._index(volume).window(number, self._tables)

    def _index(self, volume: Volume) -> Index:
        path = volume.index.path
        found = self._indexes.get(path)
        if found is None:
            try:
                found = read_index(self.storage, volume.index)
            except RelayCorruptError:
                found = read_index(self.storage, self._replaced(volume).index)
            while len(self._indexes) >= _INDEXES:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[path] = found
        return found

    def _replaced(self, volume: Volume) -> Volume:
        """The volume that is in the place of another by now, or itself."""
        self._volumes = []
        found = self._chain.find(volume.lo)
        return found if found is not None else volume
