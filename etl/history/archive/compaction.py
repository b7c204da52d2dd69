"""Replace many small archive segments by few large ones.

Their windows are read from the archive, and written as those of the relay log are. Of two processes
that compact a day at once the later one continues, and the other ends; its files are removed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluice.errors import ours
from sluice.etl.history.archive._pending import PendingSegments, remove_abandoned
from sluice.etl.history.archive._segment_queue import (
    SegmentBuilder,
    SegmentQueue,
    SparkSegmentBuilder,
)
from sluice.etl.history.archive.compaction_policy import compaction_groups
from sluice.etl.history.archive.plan import SegmentPlan
from sluice.etl.history.archive.report import OnSegment, Stop, never_stop, wait
from sluice.etl.history.archive.worker import BuildSegments
from sluice.etl.history.lake import remove_superseded
from sluice.etl.history.lake.iceberg import IcebergError
from sluice.etl.history.lake.iceberg_view import IcebergView
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Settings
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay.archive import Archive, ArchiveConflictError, ArchiveSegment, remove_unreferenced
from sluice.relay.jobs import Jobs

__all__ = ["CompactionSummary", "compact"]

log = logging.getLogger("sluice.archive")

ROLE = "archive-compact"


@dataclass(slots=True)
class CompactionSummary:
    """Counts of a compaction: `segments` that became `into`.

    `bytes` written; `removed` files of segments that were replaced some hours ago, or never came
    into the archive.
    """

    segments: int = 0
    into: int = 0
    bytes: int = 0
    removed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def compact(
    settings: Settings,
    *,
    stop: Stop = never_stop,
    on_segment: OnSegment | None = None,
    jobs: SegmentBuilder | None = None,
) -> CompactionSummary:
    """Compact segments day by day where it is worth it, then remove unneeded files; until `stop`.

    `jobs`: where segments are made, by default on Spark. Transient errors are retried. Raises relay
    errors, SparkError.
    """
    with contextlib.closing(_CompactionRun(settings, stop, on_segment, jobs)) as compactor:
        compactor.run()
        return compactor.summary


class _CompactionRun:
    def __init__(
        self,
        settings: Settings,
        stop: Stop,
        on_segment: OnSegment | None,
        jobs: SegmentBuilder | None,
    ) -> None:
        self.summary = CompactionSummary()
        self._stop = stop
        self._on_segment = on_segment
        self._archive = Archive.open(settings.archive_url)
        self._iceberg = IcebergView.from_settings(settings)
        self._attempts = PendingSegments(self._archive.storage)
        self._open_jobs = Jobs.for_pipeline(settings.open_relay())
        work = BuildSegments.from_settings(settings, settings.archive_url)
        jobs = jobs or SparkSegmentBuilder(
            SessionTarget(
                settings.spark.for_batch(), settings.spark_role(ROLE), settings.archive_url
            ),
            work,
        )
        self._queue = SegmentQueue(jobs, work, at_once=1)
        self._waiting = RetryBackoff(log, "compacting the archive")

    def run(self) -> None:
        while not self._stop():
            try:
                if not self._compact_some():
                    self.summary.removed = self._remove_replaced()
                    return
                self._waiting.over()
            except ArchiveConflictError as error:
                log.info("left to another process: %s", error)
                return
            except Exception as error:
                failure = ours(error)
                self._queue.abandon(failure)
                if not failure.transient:
                    raise
                wait(self._waiting.after(failure), self._stop)

    def close(self) -> None:
        self._queue.close()

    def _compact_some(self) -> bool:
        """Compact what is worth it now; return whether there was anything."""
        last = self._archive.last()
        for name in self._archive.catalogue.days():
            day = self._archive.catalogue.load(name)
            found = compaction_groups(day.segments, is_over=last is not None and last.day > name)
            for group in found:
                if self._stop():
                    return False
                self._compact(name, group)
            if found:
                return True
        return False

    def _compact(self, day: str, group: Sequence[ArchiveSegment]) -> None:
        windows = tuple(self._archive.log.windows(group[0].lo, group[-1].hi))
        plan = SegmentPlan.from_windows(windows, sum(segment.binlog_bytes for segment in group))
        token = self._attempts.begin(plan.lo, plan.hi, compacts=True)
        self._archive.begin_compaction(day, token)
        self._queue.submit(iter([plan]), lambda _: token)
        began = time.perf_counter()
        made = self._queue.take()
        assert made is not None
        self._archive.replace(group, made.segment)
        if self._iceberg is None:  # else its snapshots name these files
            lake = [file for segment in group for file in segment.lake]
            remove_superseded(self._archive.storage, lake, made.segment.lake)
        self._attempts.over(token)
        report = made.report(0.0)
        self.summary.segments += len(group)
        self.summary.into += 1
        self.summary.bytes += made.segment.bytes
        log.info(
            "compacted segments=%d windows=%d changes=%d log_bytes=%d lake_bytes=%d seconds=%.1f"
            " lo=%d hi=%d",
            len(group),
            report.windows,
            report.changes,
            report.log_bytes,
            report.lake_bytes,
            time.perf_counter() - began,
            report.lo,
            report.hi,
        )
        if self._on_segment is not None:
            self._on_segment(report)

    def _remove_replaced(self) -> int:
        """Remove files that are no longer needed, and return their number."""
        abandoned = remove_abandoned(self._archive, self._stop)
        named: frozenset[str] = frozenset()
        if self._iceberg is not None:
            self._iceberg.update_or_log()
            try:
                named = self._iceberg.named_files()
            except IcebergError as error:
                log.error("no replaced file is removed: %s; %s", error, error.hint)
                return abandoned
        return abandoned + remove_unreferenced(self._archive, self._open_jobs.is_over, named)
