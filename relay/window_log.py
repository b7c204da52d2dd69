"""The queries of landed windows, wherever they are: in the relay log, or in the archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from sluice.relay.overrides import Overrides
from sluice.relay.storage import Storage
from sluice.relay.window import WindowRecord

if TYPE_CHECKING:
    import pyarrow as pa


class WindowLog(Protocol):
    """A chain of windows for reading.

    Parts are named relative to `url`, which is what Spark's workers open.
    """

    @property
    def url(self) -> str: ...

    @property
    def storage(self) -> Storage: ...

    @property
    def overrides(self) -> Overrides:
        """Return operators' overrides of transactions and DDL in the windows."""

    def first(self) -> WindowRecord | None:
        """Return the oldest window, None if there is none."""

    def last(self) -> WindowRecord | None:
        """Return the newest window, None if there is none."""

    def next(self, lo: int) -> WindowRecord | None:
        """Return the window that begins at lo. Raises RelayCorruptError."""

    def find(self, ts: int) -> WindowRecord | None:
        """Return the first window with hi > ts.

        Its lo is greater than ts if what lies between isn't there: check it.
        """

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[WindowRecord]:
        """Yield the windows with commits in (from_ts, to_ts], in order, from the first there is.

        Raises RelayGapError.
        """

    def backwards(self, through_ts: int, after_ts: int = 0) -> Iterator[WindowRecord]:
        """Yield the windows that hold commits in (after_ts, through_ts], the newest first.

        It goes as far back as there are any. Raises RelayGapError, RelayCorruptError.
        """

    def read(self, windows: Iterable[WindowRecord]) -> pa.Table:
        """Yield their changes in PART_SCHEMA in commit order. Raises RelayCorruptError."""


def in_portions(
    log: WindowLog, after_ts: int, through_ts: int, *, windows: int, changes: int
) -> Iterator[list[WindowRecord]]:
    """Yield the windows that hold commits in (after_ts, through_ts], in order, in portions.

    A portion has at most `windows` windows, and more than `changes` row changes only if it is a
    single window. Raises as `WindowLog.windows`.
    """
    portion: list[WindowRecord] = []
    inside = 0
    for window in log.windows(after_ts, through_ts) if after_ts < through_ts else ():
        if portion and (len(portion) == windows or inside + window.changes > changes):
            yield portion
            portion, inside = [], 0
        portion.append(window)
        inside += window.changes
    if portion:
        yield portion
