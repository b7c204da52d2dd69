"""Check that a whole archive can be read, by reading it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from sluice.etl.history.archive._segment_queue import SegmentBuilder, SparkSegmentBuilder
from sluice.etl.history.archive.verifying import TASK_SCHEMA, ReadSegments
from sluice.etl.settings import Settings
from sluice.etl.spark.session_target import BATCH, SessionTarget
from sluice.relay import RelayGapError
from sluice.relay.archive import Archive, ArchiveSegment

__all__ = ["CheckSummary", "check"]

log = logging.getLogger("sluice.archive")

ROLE = "archive-check"


@dataclass(slots=True)
class CheckSummary:
    """Counts of what was read, and `problems`: a line each, which names a file.

    `lo`, `hi`: the range (TSO).
    """

    lo: int = 0
    hi: int = 0
    segments: int = 0
    files: int = 0
    bytes: int = 0
    changes: int = 0
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    def add(self, segment: ArchiveSegment, problems: list[str]) -> None:
        self.lo = self.lo or segment.lo
        self.hi = segment.hi
        self.segments += 1
        self.files += len(segment.files)
        self.bytes += segment.bytes
        self.changes += segment.changes
        self.problems += problems


OnRead = Callable[[CheckSummary], None]
"""Called after each segment that has been read, with the findings so far."""


def check(
    settings: Settings,
    from_ts: int = 0,
    to_ts: int | None = None,
    *,
    on_segment: OnRead | None = None,
    jobs: SegmentBuilder | None = None,
) -> CheckSummary:
    """Read every file of the segments with commits in (from_ts, to_ts] (TSO.

    None: through the end), in Spark's workers, and compare it with its checksums and the catalogue.
    A hole in the chain is a problem, too, and what lies behind it is not read. `jobs`: where it is
    read, by default on Spark. Raises relay errors for a catalogue that can't be read, SparkError.
    """
    summary = CheckSummary()
    work = ReadSegments(settings.archive_url)
    jobs = jobs or SparkSegmentBuilder(
        SessionTarget(settings.spark.for_batch(), BATCH, settings.archive_url),
        work,
        tasks=TASK_SCHEMA,
    )
    with contextlib.closing(jobs), ThreadPoolExecutor(settings.archive.worker_count) as threads:
        segments = _chain(Archive.open(settings.archive_url), from_ts, to_ts, summary)
        running: deque[tuple[ArchiveSegment, Future[list[str]]]] = deque()
        for segment in segments:
            jobs.connect()
            running.append(
                (segment, threads.submit(jobs.run, {"segment": json.dumps(segment.to_json())}))
            )
            if len(running) > 2 * settings.archive.worker_count:
                _collect_results(running, summary, on_segment)
        while running:
            _collect_results(running, summary, on_segment)
    return summary


def _collect_results(
    running: deque[tuple[ArchiveSegment, Future[list[str]]]],
    summary: CheckSummary,
    on_segment: OnRead | None,
) -> None:
    segment, answer = running.popleft()
    summary.add(segment, answer.result())
    if on_segment is not None:
        on_segment(summary)


def _chain(
    archive: Archive, from_ts: int, to_ts: int | None, summary: CheckSummary
) -> Iterator[ArchiveSegment]:
    if from_ts == 0 and (missing := archive.missing_before()):
        summary.problems.append(missing)
    try:
        for segment in archive.chain(from_ts):
            if to_ts is not None and segment.lo >= to_ts:
                return
            yield segment
    except RelayGapError as error:
        summary.problems.append(str(error))
