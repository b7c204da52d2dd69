"""Leave out commits of nothing between two clusters that replicate each other.

A commit moves the checkpoint, which is a change of the downstream, so the other direction lands a
window with it and commits too. Without a pause the two would commit nothing in turns for ever.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sluice.etl.apply._batch import WindowBatch
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.settings import Downstream, Settings
from sluice.relay import RelayLog


@dataclass(slots=True)
class PostponedCommit:
    """A batch that changes nothing, and its only step."""

    batch: WindowBatch
    step: Step


class PostponedCommits:
    """Hold the last commit of nothing back, at most `interval_s` behind the last one written.

    After that the next batch commits. Landing makes a window without changes as often.
    """

    def __init__(self, interval_s: float) -> None:
        """Postpone for `interval_s` at most; 0: never."""
        self._interval_s = interval_s
        self._committed_at: float | None = None
        self._waiting: PostponedCommit | None = None
        self._returned = 0
        """Transactions that came from downstream, to be counted with the next commit."""

    @classmethod
    def from_settings(cls, settings: Settings, until_ts: int | None) -> PostponedCommits:
        """Return them for a pipeline; a run through `until_ts` ends with a commit there."""
        is_two_way = (
            isinstance(settings.target, Downstream) and settings.downstream.loopback_control
        )
        postpones = is_two_way and until_ts is None
        return cls(settings.landed_window.idle_interval_ms / 1000 if postpones else 0.0)

    def start(self) -> None:
        """Begin at a checkpoint: its first batch is committed."""
        self._committed_at = self._waiting = None
        self._returned = 0

    def take(
        self, batch: WindowBatch, steps: Iterator[Step], relay: RelayLog
    ) -> Iterator[Step] | None:
        """Return the steps to be written, None if they are postponed.

        The first commit counts what was left out of postponed batches: before it no checkpoint
        does, so after a crash they are read again.
        """
        if not self._may_wait() or relay.control().apply_until_ts is not None:
            return self._counting(steps)
        first = next(steps, None)
        if first is None:
            return iter(())
        is_empty = isinstance(first.detail, CommitDetail) and not (
            first.rows or first.changes or first.detail.warnings
        )
        if is_empty and first.commit_ts == batch.hi:
            for _ in steps:  # there are no more: the batch ends in its queue
                raise AssertionError("steps behind a batch's last commit")
            self._waiting = PostponedCommit(batch, first)
            self._returned += first.detail_of(CommitDetail).returned
            return None
        return self._counting(itertools.chain([first], steps))

    def _counting(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield the steps; the first commit has the count of those that were postponed, too."""
        for step in steps:
            detail, more = step.detail, self._returned
            if more and isinstance(detail, CommitDetail):
                self._returned = 0
                yield replace(step, detail=replace(detail, returned=detail.returned + more))
            else:
                yield step

    def _may_wait(self) -> bool:
        return (
            self._committed_at is not None
            and time.monotonic() < self._committed_at + self._interval_s
        )

    def release(self) -> PostponedCommit | None:
        """Return the commit that waits, and forget it."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        detail = replace(waiting.step.detail_of(CommitDetail), returned=self._returned)
        self._returned = 0
        return replace(waiting, step=replace(waiting.step, detail=detail))

    def written(self) -> None:
        """Note that a commit was written, behind all that was postponed."""
        self._committed_at, self._waiting = time.monotonic(), None
