"""Make archive segments of windows in Spark jobs.

A row goes in, the segment as its entry in the catalogue comes out. Workers read the relay log and
write the archive themselves; nothing of it passes through the JVM. The files are durable when the
job has ended, and mean nothing until the archive's catalogue names them.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from sluice.etl.history.archive.plan import SegmentPlan
from sluice.etl.history.archive.report import ArchivedSegment
from sluice.etl.history.archive.worker import TASK_SCHEMA, BuildSegments, build_segment
from sluice.etl.spark.errors import SparkError, WorkerError
from sluice.etl.spark.job import window_range
from sluice.etl.spark.job_calls import JobCalls, WorkerFunction
from sluice.etl.spark.session_target import SessionTarget
from sluice.relay.archive import ArchiveSegment

_JOB_TIMEOUT_S = 1800.0
_ABANDON_TIMEOUT_S = 20.0


class SegmentBuilder(Protocol):
    """Make segments: Spark's workers, or this process."""

    def connect(self) -> None:
        """Prepare to `run`."""

    def run(self, task: dict[str, Any]) -> Any:
        """Return the result of a task's row, see `sluice.etl.history.archive.worker`.

        Threads may call it at once.
        """

    def interrupt(self) -> None:
        """End the running jobs."""

    def close(self) -> None:
        """Release what `connect` has made; it can be called again."""


class SparkSegmentBuilder(JobCalls):
    """Run jobs of one function on a Spark Connect server."""

    def __init__(
        self, place: SessionTarget, function: WorkerFunction, tasks: pa.Schema = TASK_SCHEMA
    ) -> None:
        """Prepare calls of `function`, which maps rows in `tasks` to JSON in TEXTS, one each."""
        super().__init__(place, function, _JOB_TIMEOUT_S, tasks)

    def run(self, task: dict[str, Any]) -> Any:
        """Return the function's result for a row. Raises SparkError, and so WorkerError."""
        tasks = pa.Table.from_pylist([task], self._tasks)
        (text,) = self.map(tasks, task.get("label", ""))
        return json.loads(text)


@dataclass(frozen=True, slots=True)
class BuiltSegment:
    """A segment whose files are written, and that no catalogue names yet.

    `stages_ms`: job until its result was taken up; within it the worker's own stages.
    """

    plan: SegmentPlan
    segment: ArchiveSegment
    stages_ms: dict[str, float]

    def report(self, append_ms: float) -> ArchivedSegment:
        """Report the segment, now that the catalogue names it."""
        segment, stages = self.segment, dict(self.stages_ms)
        stages["spark"] = 2 * stages["job"] - sum(stages.values())
        lake = sum(file.bytes for file in segment.lake)
        return ArchivedSegment(
            segment.lo,
            segment.hi,
            len(self.plan.windows),
            segment.transactions,
            segment.changes,
            segment.binlog_bytes,
            segment.bytes - lake,
            lake,
            stages | {"append": append_ms},
        )


class SegmentQueue:
    """Volumes that Spark's workers are making, several at once, and taken up in order.

    Those in which nothing was committed are made here: they cost less than a job.
    """

    def __init__(self, jobs: SegmentBuilder, work: BuildSegments, at_once: int) -> None:
        self._jobs = jobs
        self._work = work
        self._max_running = at_once
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="archive-job")
        self._running: deque[tuple[SegmentPlan, float, Future[Any]]] = deque()

    def submit(self, plans: Iterator[SegmentPlan], begin: Callable[[SegmentPlan], str]) -> None:
        """Submit as many jobs as may run. `begin` gives each a token that no other one has had."""
        while len(self._running) < self._max_running and (plan := next(plans, None)) is not None:
            if not plan.is_quiet:
                self._jobs.connect()
            task = {"token": begin(plan), "records": plan.records, "binlog_bytes": plan.bytes}
            task["label"] = window_range(plan.lo, plan.hi)
            run = self._run_locally if plan.is_quiet else self._jobs.run
            self._running.append((plan, time.perf_counter(), self._threads.submit(run, task)))

    def _run_locally(self, task: dict[str, Any]) -> Any:
        return build_segment(self._work, task, task["token"])

    def take(self) -> BuiltSegment | None:
        """Wait for the first job and return its segment; None if no job runs.

        Raises as ArchiveJobs.run.
        """
        if not self._running:
            return None
        plan, began, running = self._running[0]
        answer = running.result()
        self._running.popleft()
        job = {"job": (time.perf_counter() - began) * 1000}
        return BuiltSegment(
            plan, ArchiveSegment.from_json(answer["segment"]), job | answer["stages_ms"]
        )

    def abandon(self, error: BaseException | None = None) -> None:
        """Stop the running jobs.

        After an `error` of Spark itself the session is let go of, too.
        """
        if self._running:
            self._jobs.interrupt()
            wait([running for _, _, running in self._running], timeout=_ABANDON_TIMEOUT_S)
            self._running.clear()
        if isinstance(error, SparkError) and not isinstance(error, WorkerError):
            self._jobs.close()

    def close(self) -> None:
        """Release everything."""
        self.abandon()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._jobs.close()
