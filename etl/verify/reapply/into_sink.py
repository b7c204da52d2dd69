"""Apply past windows to another sink, exactly once, beside the running pipeline.

The sink itself holds the position to continue from, as in replication. Beside it only the job's
need for its windows is recorded: nothing that lies beyond its position gets removed from the relay
log, until the job is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict

from sluice.etl.apply import (
    ApplySummary,
    BatchReport,
    Prepare,
    ReplayRange,
    SparkPreparer,
    apply_range,
    prepare_options,
)
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.settings import Settings
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.verify.errors import ReplayRangeError
from sluice.etl.verify.reapply import window_range
from sluice.etl.verify.reapply.plan import make_replay_plan
from sluice.etl.verify.reapply.request import ReplayRequest, ReplaySummary, consumer_of
from sluice.etl.verify.reapply.target import ReplayTarget
from sluice.relay import RelayGapError
from sluice.relay.consumers import Consumers
from sluice.relay.jobs import (
    CANCEL,
    CANCELLED,
    DONE,
    FINAL_STATES,
    PAUSED,
    Job,
    JobCounts,
    JobRun,
    TableProgress,
    stop_on_orders,
)
from sluice.tidb import tso

PROGRESS_NAME = "windows"
"""Under this name the job's progress stands, in the place of a table's: a chunk is a window, a row
a row change.
"""
_NOTE_INTERVAL_S = 10.0


class ReplayIntoSink:
    """One run of such a job."""

    def __init__(
        self,
        settings: Settings,
        job: Job,
        run: JobRun,
        on_progress: Callable[[JobCounts, TableProgress], None],
    ) -> None:
        self._settings = settings
        self._job = job
        self._name = f"{job.id}/{job.spec.token}"  # jobs of other relay logs have the same ids
        self._run = run
        self._request = ReplayRequest.from_json(job.spec.asked)
        self._own = self._request.settings(settings)
        self._to = downstream_name(self._own.target)
        self._relay = settings.open_relay()
        self._consumers = Consumers(self._relay)
        self._noted_at = 0.0
        self._began = time.monotonic()
        self._on_progress = on_progress
        self._done = JobCounts()
        self._base = TableProgress()
        self._stop = threading.Event()

    def run(self, prepare: Prepare | None) -> ReplaySummary:
        """Run until the range is applied, or an operator stops it; return how it ended.

        Raises as `run_reapply`.
        """
        request, own = self._request, self._own
        sink = self._begin().open(self._name)
        with ExitStack() as stack:
            if prepare is None:
                # a session of its own: the pipeline's goes on undisturbed
                role = f"reapply {self._job.id}"
                prepare = SparkPreparer(
                    SessionTarget(own.spark, role, own.relay.url), prepare_options(own)
                )
                stack.callback(prepare.close)
            stack.enter_context(stop_on_orders(self._run, self._stop))
            done = apply_range(
                self._relay, ReplayRange(request.since, request.until), sink,
                prepare=prepare, limits=own.apply, stop=self._stop, on_batch=self._on_batch,
            )  # fmt: skip
        return self._end(done)

    def _end(self, done: ApplySummary) -> ReplaySummary:
        """Record and return how it ended."""
        request = self._request
        summary = ReplaySummary(
            self._job.id,
            self._to,
            request.since,
            request.until,
            done.checkpoint,
            done.windows,
            done.transactions,
            done.changes,
            done.rows,
            done.ddls,
            round(time.monotonic() - self._began, 3),
            tuple(done.warnings),
        )
        self._note(done.checkpoint)
        if summary.is_done:
            self._run.end(DONE, result=asdict(summary))
        else:
            self._run.look()
            self._run.check()
            cancelled = self._run.order == CANCEL
            there = (
                f"{self._to} has what was committed after {request.since} through {done.checkpoint}"
            )
            self._run.end(CANCELLED if cancelled else PAUSED, message=there, result=asdict(summary))
        if self._job.entry().state in FINAL_STATES:
            self._consumers.forget(consumer_of(self._job.id))
        return summary

    def _begin(self) -> ReplayTarget:
        """Return the sink, free for this job, with its windows pinned.

        Raises ReplayRangeError, RelayGapError.
        """
        request, name = self._request, consumer_of(self._job.id)
        noted = self._consumers.positions().get(name)
        first = self._relay.first()
        other = ReplayTarget(
            self._settings, self._own, first.cluster_id if first else 0, request.since
        )
        there = other.begun(self._name)
        if there is None:
            if noted is not None and noted > request.since:
                raise ReplayRangeError(
                    f"{self._to}: the checkpoint of the job {self._job.id}, which was at"
                    f" {tso.text(noted)}, is gone. Empty the target, cancel the job, and ask for"
                    " another"
                )
            if problems := make_replay_plan(self._settings, request).problems:
                raise ReplayRangeError("\n".join(problems))
        at = max(there.commit_ts, request.since) if there else request.since
        self._note(at)
        self._check_target(at)
        self._count(at)
        return other

    def _check_target(self, at: int) -> None:
        """Raise RelayGapError if the next windows were removed."""
        first = self._relay.first()
        if at < self._request.until and (first is None or first.lo > at):
            held = f"begins at {tso.text(first.lo)}" if first else "is empty"
            raise RelayGapError(
                f"{self._relay.url}: the job {self._job.id} goes on at {tso.text(at)}, but the"
                f" relay log {held}: what lies between was removed",
                hint=(
                    f"cancel the job (`sluice jobs cancel {self._job.id}`), and ask for another one"
                    " into an empty place, from where the relay log begins"
                ),
            )

    def _count(self, at: int) -> None:
        """Record how much there is to do, and what of it lies before `at`."""
        request = self._request
        plan = self._job.plan()
        left = (
            window_range.inspect_range(self._relay, at, request.until, self._own.filters)
            if at < request.until
            else None
        )
        windows, size = (left.windows, left.bytes) if left else (0, 0)
        plan = plan or self._job.save_plan({"windows": windows, "bytes": size})
        before = JobCounts(0, max(0, plan["bytes"] - size), max(0, plan["windows"] - windows))
        self._base = TableProgress(before, plan["bytes"], plan["windows"])
        self._run.set_totals({PROGRESS_NAME: self._base})

    def _on_batch(self, report: BatchReport, size: int) -> None:
        one = JobCounts(report.changes, size, report.windows)
        self._done += one
        self._run.did(PROGRESS_NAME, one)
        self._run.doing(f"through {tso.time_text(report.hi)}")
        if time.monotonic() - self._noted_at > _NOTE_INTERVAL_S:
            self._note(report.hi)
        self._on_progress(self._done, self._base)
        self._run.look()
        self._run.check()
        if self._run.order is not None:
            self._stop.set()
        if self._request.rows_per_second:
            ahead_s = self._done.rows / self._request.rows_per_second - (
                time.monotonic() - self._began
            )
            self._stop.wait(max(0.0, ahead_s))

    def _note(self, at: int) -> None:
        self._noted_at = time.monotonic()
        self._consumers.note(
            consumer_of(self._job.id), at, f"the job {self._job.id}, to {self._to}"
        )
