"""What can be asked of landed windows, wherever they are: in the relay log, or in the archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from relay.decisions import Decisions
from relay.storage import Storage
from relay.window import Window


class WindowLog(Protocol):
    """A chain of windows for reading. Parts are named relative to `url`, which is what Spark's workers open."""

    @property
    def url(self) -> str: ...

    @property
    def storage(self) -> Storage: ...

    @property
    def decisions(self) -> Decisions:
        """What operators decided about transactions and DDL in the windows."""

    def first(self) -> Window | None:
        """The oldest window, None if there is none."""

    def last(self) -> Window | None:
        """The newest window, None if there is none."""

    def next(self, lo: int) -> Window | None:
        """The window that begins at lo. Raises RelayCorruptError."""

    def find(self, ts: int) -> Window | None:
        """The first window with hi > ts. Its lo is greater than ts if what lies between isn't there: check it."""

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[Window]:
        """Those that hold commits in (from_ts, to_ts], in order, from the first there is. Raises RelayGapError."""

    def backwards(self, through_ts: int, after_ts: int = 0) -> Iterator[Window]:
        """Those that hold commits in (after_ts, through_ts], the newest first, as far back as there are any. Raises
        RelayGapError, RelayCorruptError.
        """

    def read(self, windows: Iterable[Window]) -> pa.Table:
        """Their changes in PART_SCHEMA by (commit_ts, position). Raises RelayCorruptError."""
