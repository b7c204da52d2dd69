"""The wall-clock time of each transaction's commit, which lag is measured against."""

from __future__ import annotations

import bisect
import time
from typing import NamedTuple


class CommitTime(NamedTuple):
    """A commit time; `wall_ms`: Unix ms at which the transaction with `commit_ts` committed.

    `transaction`: its number in a workload.
    """

    commit_ts: int
    wall_ms: float
    transaction: int | None = None


class CommitLog:
    """Commit times in order of commit_ts."""

    def __init__(self) -> None:
        self._times: list[CommitTime] = []

    def __len__(self) -> int:
        return len(self._times)

    @property
    def newest_ts(self) -> int:
        """Return the largest commit_ts, 0 before the first."""
        return self._times[-1].commit_ts if self._times else 0

    def add(self, commit_ts: int, transaction: int | None = None) -> None:
        """Record that the transaction committed just now."""
        bisect.insort(self._times, CommitTime(commit_ts, time.time() * 1000, transaction))

    def drop(self, ts: int) -> None:
        """Forget the commits through `ts` (TSO) but for the newest one."""
        del self._times[
            : min(bisect.bisect_right(self._times, ts, key=_commit_ts), len(self._times) - 1)
        ]

    def after(self, ts: int, limit: int) -> list[CommitTime]:
        """Return up to `limit` commit times with commit_ts > `ts`, ascending."""
        at = bisect.bisect_right(self._times, ts, key=_commit_ts)
        return self._times[at : at + limit]


def _commit_ts(entry: CommitTime) -> int:
    return entry.commit_ts
