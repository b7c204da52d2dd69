"""Read the chain of landed windows: by name where it can be, else by listing.

A listing may lag behind in an object store. What is found by its name is always up to date.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sluice.relay.errors import RelayCorruptError, RelayGapError
from sluice.relay.format_version import NewerFormatError
from sluice.relay.hour_listings import HourListings
from sluice.relay.storage import Storage
from sluice.relay.window import WindowRecord, hour_of, window_path
from sluice.tidb import tso

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_WINDOW_FILE = "first-window.json"
_MAX_TS = 2**63 - 1
_FEW = 10
"""Names of an hour's first windows: more than one, as the first may be purged meanwhile."""
_RECENT_MS = (60_000, 900_000)
"""Where the newest window is looked for first: of a log that is landed to, and of one that waits.
"""


class WindowChain:
    """The landed windows in a relay log's storage. Any number of processes may read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._hours = HourListings(storage)

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def storage(self) -> Storage:
        """Return the storage of its files."""
        return self._storage

    def next(self, lo: int) -> WindowRecord | None:
        """Return the window that begins at lo, found by its name; None if it isn't landed.

        Raises RelayCorruptError.
        """
        window = self._record(window_path(lo))
        if window is not None and window.lo != lo:
            raise self._corrupt(
                window_path(lo), f"the record is of the window that begins at {window.lo}"
            )
        return window

    def find(self, ts: int) -> WindowRecord | None:
        """Return the first window with hi > ts: the one that holds the commits right after ts.

        None if there is none yet. Its lo is greater than ts if the windows between have been purged
        or never were landed: check it.
        """
        if (exact := self.next(ts)) is not None:
            return exact
        hours = self._storage.names("windows")
        at = bisect.bisect_right(hours, hour_of(ts))
        # One listing for both sides of ts: were it older on one, a window between them would seem
        # to be missing.
        around = self._listed(hours[at - 1]) if at else []
        cut = bisect.bisect_right(around, _name(ts))
        older = (
            lo
            for hour in reversed(hours[: max(at - 1, 0)])
            for lo in _starts_of(reversed(self._listed(hour)))
        )
        through = itertools.chain(_starts_of(reversed(around[:cut])), older)
        newer = (lo for hour in hours[at:] for lo in _starts_of(self._listed(hour)))
        behind = itertools.chain(_starts_of(around[cut:]), newer)
        below = next(self._existing(through), None)
        later = next(self._existing(behind), None) if below is None else None
        if below is None and later is None and (unlisted := self._unlisted_first()) is not None:
            below, later = (unlisted, None) if unlisted.lo <= ts else (None, unlisted)
        if below is not None:
            window = self._onward(below, ts)
            if window.hi > ts:
                return window
            later = next(self._existing(behind), None)
        if later is None:
            return None
        # Since the first look both may have been landed, that one and the one before.
        return self.next(ts) or later

    def first(self) -> WindowRecord | None:
        """Return the oldest window, None if the log is empty."""
        hours = self._storage.names("windows")
        listed = self._existing(lo for hour in hours for lo in self._oldest(hour))
        return next(listed, None) or self._unlisted_first()

    def last(self) -> WindowRecord | None:
        """Return the newest window, None if the log is empty."""
        hours = reversed(self._storage.names("windows"))
        listed = next(self._existing(lo for hour in hours for lo in self._newest(hour)), None)
        found = listed or self._unlisted_first()
        return None if found is None else self._onward(found, _MAX_TS)

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[WindowRecord]:
        """Yield the landed windows that hold commits in (from_ts, to_ts], in order.

        Without to_ts, all after from_ts.

        Raises RelayGapError where the chain is broken, RelayCorruptError for a bad record.
        """
        window = self.find(from_ts)
        while window is not None and (to_ts is None or window.lo < to_ts):
            yield window
            following = self.next(window.hi)
            if following is None:
                beyond = self.find(window.hi)
                # It may just have been landed, between the two looks.
                if beyond is not None and beyond.lo != window.hi:
                    raise self._gap(window, beyond)
                following = beyond
            window = following

    def backwards(self, through_ts: int, after_ts: int = 0) -> Iterator[WindowRecord]:
        """Yield the landed windows that hold commits in (after_ts, through_ts], the newest first.

        It goes as far back as there are any. Raises RelayGapError where the chain is broken,
        RelayCorruptError for a bad record.
        """
        later: WindowRecord | None = None
        for lo in self._starts_before(through_ts):
            window = self.next(lo)
            if window is None:
                return  # purged between the listing and the look, and with it all that is older
            if later is not None and window.hi != later.lo:
                raise self._gap(window, later)
            if window.hi <= after_ts:
                return
            later = window
            yield window

    def read(self, windows: Iterable[WindowRecord]) -> pa.Table:
        """Return the changes of windows in PART_SCHEMA, merged in commit order.

        Each transaction comes once. Raises RelayCorruptError, which names the file.
        """
        from sluice.relay.part import read_parts  # with Arrow, which status does without

        return read_parts(self._storage, [part for window in windows for part in window.parts])

    def _gap(self, window: WindowRecord, later: WindowRecord) -> RelayGapError:
        return RelayGapError(
            f"{self.url}: no window begins at {window.hi}, where {window.path} ends, but"
            f" {later.path} exists",
            hint=f"restore {window_path(window.hi)} from a copy",
        )

    def _starts(self) -> Iterator[int]:
        for hour in self._storage.names("windows"):
            yield from _starts_of(self._listed(hour))

    def _starts_before(self, ts: int) -> Iterator[int]:
        """Yield where windows begin, the newest first."""
        hours = self._storage.names("windows")
        for hour in reversed(hours[: bisect.bisect_right(hours, hour_of(ts))]):
            yield from (lo for lo in _starts_of(reversed(self._listed(hour))) if lo < ts)

    def _oldest(self, hour: str) -> Iterator[int]:
        """Yield where an hour's windows begin, the oldest first; some may come again.

        An hour may have tens of thousands of windows, which stores list by the thousand.
        """
        yield from _starts_of(self._storage.names_after(f"windows/{hour}", limit=_FEW))
        yield from _starts_of(self._listed(hour))

    def _newest(self, hour: str) -> Iterator[int]:
        """Yield where an hour's windows begin, the newest first; some may come again.

        In a store the last minutes before now are listed first, for the same reason.
        """
        if self._storage.is_remote:
            now = tso.wall_clock()
            for recent_ms in _RECENT_MS:
                after = _name(now - tso.span(recent_ms))
                names = self._storage.names_after(f"windows/{hour}", after)
                yield from _starts_of(reversed(names))
        yield from _starts_of(reversed(self._listed(hour)))

    def _unlisted_first(self) -> WindowRecord | None:
        """Return the first window of a young log, which a lagging list doesn't show."""
        window = self._record(FIRST_WINDOW_FILE) if self._storage.lists_may_lag else None
        return self.next(window.lo) if window is not None else None

    def _listed(self, hour: str) -> list[str]:
        """Return the names of an hour's records, and of anything else there, in order."""
        return self._hours.names(hour)

    def _existing(self, starts: Iterable[int]) -> Iterator[WindowRecord]:
        """Yield the windows that begin at `starts`, which come from a listing.

        Those that have been purged meanwhile are left out.
        """
        return (window for lo in starts if (window := self.next(lo)) is not None)

    def _onward(self, window: WindowRecord, ts: int) -> WindowRecord:
        """Return the first of the following windows with hi > ts, or the last one.

        It goes on where a listing may lag.
        """
        while (
            self._storage.lists_may_lag
            and window.hi <= ts
            and (following := self.next(window.hi)) is not None
        ):
            window = following
        return window

    def _record(self, path: str) -> WindowRecord | None:
        """Return a window record, None if it isn't there."""
        try:
            data = self._storage.read(path)
            try:
                return WindowRecord.from_json(data)
            except ValueError:  # it may have been damaged on the way here
                return WindowRecord.from_json(self._storage.read(path))
        except FileNotFoundError:
            return None
        except NewerFormatError as error:
            raise error.at(f"window record {self.url}/{path}") from None
        except ValueError as error:
            raise self._corrupt(path, error) from None

    def _corrupt(self, path: str, what: object) -> RelayCorruptError:
        return RelayCorruptError(
            f"window record {self.url}/{path}: {what}",
            hint=(
                "restore the file from a copy, or, while the pumps still hold these commits, remove"
                " it and all later records and land again"
            ),
        )


def _name(lo: int) -> str:
    """Return the name of the record of the window that begins at lo, in its hour."""
    return window_path(lo).rpartition("/")[2]


def _starts_of(names: Iterable[str]) -> Iterator[int]:
    """Yield where the windows begin that have records of these names.

    One by one: an hour may have tens of thousands, and the caller needs one or two.
    """
    return (
        int(name[:20])
        for name in names
        if len(name) == 25 and name[:20].isdigit() and name.endswith(".json")
    )
