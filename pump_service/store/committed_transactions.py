"""Hold a chunk of committed transactions, and name the records that can't be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sluice.pump_service.store.record_reader import Ints, RecordHeads
from sluice.pump_service.store.segment import RecordPointer


class UnreadableRecord(NamedTuple):
    """Name a timestamp that can't be given to readers, and the place of the record it needs."""

    ts: int
    fid: int
    offset: int


@dataclass(frozen=True, slots=True)
class CommittedTransactions:
    """Hold committed transactions by commit_ts: row i of `commits` and of `prewrites` match.

    `fakes` are the fake binlogs of the same range; `through` is the timestamp up to which this is
    complete. What `bad` and `missing` name is excluded.
    """

    commits: RecordHeads
    prewrites: RecordHeads
    fakes: RecordHeads
    through: int
    bad: tuple[UnreadableRecord, ...] = ()
    """Unreadable records of this range, and unreadable Prewrites of its transactions."""
    missing: tuple[tuple[int, int, RecordPointer], ...] = ()
    """commit_ts, start_ts and Commit of transactions without a Prewrite in the index."""

    @property
    def whole(self) -> bool:
        """Return whether nothing was excluded."""
        return not self.bad and not self.missing

    def until(self, ts: int) -> CommittedTransactions:
        """Return the transactions up to a smaller timestamp."""
        count = int(np.searchsorted(self.commits.commits, ts, "right"))
        fakes = int(np.searchsorted(self.fakes.commits, ts, "right"))
        first, rest = slice(0, count), slice(0, fakes)
        return CommittedTransactions(
            self.commits.select(first), self.prewrites.select(first), self.fakes.select(rest), ts
        )


def by_commit(records: RecordHeads) -> RecordHeads:
    """Return records by commit_ts, and by start_ts where several share it."""
    if len(records) > 1 and bool((np.diff(records.commits) <= 0).any()):
        return records.select(np.lexsort((records.starts, records.commits)))
    return records


def groups(sizes: Ints, max_bytes: int, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield neighbouring rows of together at most max_bytes and max_rows, at least one row each."""
    total = np.cumsum(sizes)
    begin, before = 0, 0
    while begin < len(sizes):
        end = int(np.searchsorted(total, before + max_bytes, "right"))
        end = max(begin + 1, min(end, begin + max_rows))
        yield begin, end
        before, begin = int(total[end - 1]), end
