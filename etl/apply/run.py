"""Apply landed windows in a loop: Spark prepares a batch, the sink writes it with its checkpoint.

The next batch is prepared while one is written, at most one ahead; batches are written in order.
The downstream's checkpoint is the only state: any trouble with the connection leads back to reading
it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from sluice.errors import ours
from sluice.etl.apply import _overrides
from sluice.etl.apply._adaptive_limits import AdaptiveLimits
from sluice.etl.apply._aligned_chunks import AlignedChunkApplier
from sluice.etl.apply._batch import (
    OverridesChanged,
    PausedByOperator,
    WaitStopped,
    WindowBatch,
    check_not_paused,
)
from sluice.etl.apply._bisect import find_failing_transaction
from sluice.etl.apply._conflicts import ConflictGuard, ConflictsFound
from sluice.etl.apply._consumer_position import ConsumerPosition
from sluice.etl.apply._counters import ApplyCounters
from sluice.etl.apply._drainer_takeover import advance_past_executed_ddl
from sluice.etl.apply._metrics import ApplyProgressLog, ApplySummary, BatchReport, report_of
from sluice.etl.apply._other_sessions import OtherSessionWatcher
from sluice.etl.apply._postponed_commits import PostponedCommits
from sluice.etl.apply._prefetch import BatchPrefetcher, Prepare
from sluice.etl.apply._run_limits import RunLimits, wait_for_first_window
from sluice.etl.apply.prepare_windows import SparkPreparer
from sluice.etl.changes.planning import PrepareOptions
from sluice.etl.changes.steps import Step
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.ownership import (
    OtherWriterError,
    PipelineIdentity,
    WriterExclusivity,
    require_bootstrap_done,
)
from sluice.etl.downstream.sinks import (
    ApplyError,
    DrainerTakeover,
    GuardsConflicts,
    RemembersBlocked,
    Sink,
    open_sink,
    read_checkpoint,
    write_plan_of_sink,
)
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Downstream, Settings
from sluice.etl.spark.session_target import SessionTarget
from sluice.etl.upstream_clock import upstream_skew_ms
from sluice.relay import AlignedChunk, WindowRecord
from sluice.relay.measures import CounterStore

__all__ = ["ApplyError", "ApplySummary", "BatchReport", "OtherWriterError", "Prepare", "run_apply"]

log = logging.getLogger("sluice.apply")

_POLL_INTERVAL_S = 0.02


@runtime_checkable
class ConnectedPreparer(Protocol):
    """A preparer that holds a connection."""

    def close(self) -> None:
        """Drop the connection; the next use connects again."""


def run_apply(  # noqa: PLR0913 independent options, passed by name
    settings: Settings,
    *,
    run_seconds: float | None = None,
    stop: threading.Event | None = None,
    until_ts: int | None = None,
    prepare: Prepare | None = None,
    on_batch: Callable[[BatchReport], None] | None = None,
    summary: ApplySummary | None = None,
    writing: AbstractContextManager[object] = contextlib.nullcontext(),  # noqa: B008 it has no state
) -> ApplySummary:
    """Apply landed windows until `run_seconds` are over, `stop` is set, or `until_ts` is reached.

    Then the checkpoint is exactly at `until_ts`. `prepare` is the Spark job by default. `summary`
    is filled during the run and returned. `writing` is entered while a batch is written.
    Connection loss, deadlocks and lock waits are retried from the checkpoint. Raises ApplyError,
    DdlError, CheckpointMovedError, OtherWriterError, CheckpointError, DownstreamError if it is
    permanent, relay errors, and what `prepare` raises.
    """
    limits = RunLimits(run_seconds, stop or threading.Event(), until_ts)
    if prepare is None:
        options, role = prepare_options(settings), settings.spark_role("apply")
        prepare = SparkPreparer(SessionTarget(settings.spark, role, settings.relay.url), options)
        prepare.warm_up()
    try:
        first = wait_for_first_window(settings.open_relay(), limits)
        summary = summary or ApplySummary()
        if first is None:
            return summary
        with contextlib.closing(
            _ApplyLoop(settings, first, prepare, limits, on_batch, summary, writing)
        ) as loop:
            return loop.run()
    finally:
        if isinstance(prepare, ConnectedPreparer):
            prepare.close()


def prepare_options(settings: Settings) -> PrepareOptions:
    """Return the options by which windows are prepared, from the settings."""
    return PrepareOptions(
        write_plan_of_sink(settings.target, settings.apply.mode),
        settings.apply.worker_count,
        settings.time_zone,
        settings.filters,
        settings.routes,
        settings.ignored_ts,
        message_format=settings.message_format,
        channels=settings.downstream.channels,
    )


class _ApplyLoop:
    """Apply from the checkpoint on, and from the checkpoint again after each transient error."""

    def __init__(  # noqa: PLR0913 the arguments of `run_apply`
        self,
        settings: Settings,
        first: WindowRecord,
        prepare: Prepare,
        limits: RunLimits,
        on_batch: Callable[[BatchReport], None] | None,
        summary: ApplySummary,
        writing: AbstractContextManager[object],
    ) -> None:
        self._writing = writing
        self._settings = settings
        self._first_window = first
        self._prepare = prepare
        self._limits = limits
        self._on_batch = on_batch
        self._relay = settings.open_relay()
        self._pipeline = pipeline = PipelineIdentity.from_settings(settings)
        self._ownership = WriterExclusivity(pipeline, settings.upstream, self._relay)
        self._consumer_position = ConsumerPosition(self._relay, pipeline.downstream)
        self._sink = open_sink(settings, first.cluster_id)
        if isinstance(self._sink, DrainerTakeover):
            self._sink.set_guard(self._ownership)
        self._aligned_chunks = AlignedChunkApplier(
            self._relay, settings.rules, settings.apply.aligned_chunk_wait_ms
        )
        self._counters = ApplyCounters(
            self._relay, pipeline.downstream, lambda: upstream_skew_ms(settings)
        )
        self._other_sessions = (
            OtherSessionWatcher(
                target,
                settings.routes,
                CounterStore(self._relay, pipeline.downstream),
                self._counters.record_other_session,
            )
            if isinstance(target := settings.target, Downstream)
            else None
        )
        self._conflicts = (
            ConflictGuard(settings, self._relay) if settings.apply.reverse_relay else None
        )
        if self._conflicts is not None and isinstance(self._sink, GuardsConflicts):
            self._sink.set_gate(self._conflicts.check)
        self._postponed = PostponedCommits.from_settings(settings, limits.until_ts)
        self._adaptive_limits = AdaptiveLimits(settings.apply)
        self._summary = summary
        self._backoff = RetryBackoff(log, "applying")
        self._progress = ApplyProgressLog()
        self._prefetcher: BatchPrefetcher | None = None
        self._batch: WindowBatch | None = None
        """The batch being written, or written last, since the checkpoint was read."""

    def run(self) -> ApplySummary:
        while not self._is_over():
            try:
                self._apply()
            except WaitStopped:
                break
            except PausedByOperator as error:
                log.info("%s", error)
            except ConflictsFound:
                log.debug("changes have lost conflicts: preparing the batch again without them")
            except OverridesChanged:
                log.info("overrides for this batch changed: preparing it again from the checkpoint")
            except Exception as error:
                cause = ours(error)
                self._counters.record_failure(error)
                if not cause.transient:
                    self._on_permanent_error(error)
                    raise
                self._summary.retries += 1
                self._limits.stop.wait(
                    self._backoff.after(cause, f"at checkpoint {self._summary.checkpoint}")
                )
            finally:
                if self._prefetcher is not None:
                    self._prefetcher.stop()
        return self._summary

    def close(self) -> None:
        self._progress.maybe_log(last=True)
        if self._other_sessions is not None:
            self._other_sessions.close()
        if self._conflicts is not None:
            self._conflicts.close()
        self._counters.close()
        self._consumer_position.close()
        self._ownership.close()
        self._sink.close()

    def _apply(self) -> None:
        """Apply from the checkpoint until the run is over."""
        self._prefetcher = self._batch = None
        self._postponed.start()
        if self._conflicts is not None:
            self._conflicts.begin(None, self._is_over)
        target, cluster_id = self._settings.target, self._first_window.cluster_id
        require_bootstrap_done(
            self._relay,
            self._pipeline.downstream,
            lambda: read_checkpoint(target, cluster_id) is not None,
        )
        self._ownership.check()
        checkpoint = self._recover()
        self._summary.warn(_overrides.settle_overrides(self._relay, checkpoint.commit_ts))
        self._prefetcher = BatchPrefetcher(
            self._relay,
            self._prepare,
            self._adaptive_limits,
            checkpoint,
            self._limits.until_ts,
            self._conflicts,
        )
        for item in self._prefetcher.items(self._is_over_for_owner):
            if isinstance(item, AlignedChunk):
                self._commit_postponed()
                self._apply_chunk(item, self._prefetcher)
                continue
            self._batch = item
            with self._writing:
                self._write(item)

    def _recover(self) -> Checkpoint:
        """Return the checkpoint to continue from, or the relay log's beginning without one."""
        sink = self._sink
        checkpoint = sink.recover()
        if (
            checkpoint is not None
            and checkpoint.needs_safe_mode
            and isinstance(sink, DrainerTakeover)
        ):
            checkpoint = advance_past_executed_ddl(
                sink, checkpoint, self._relay, self._wait, self._settings.rules
            )
        start = checkpoint or Checkpoint(self._first_window.lo)
        self._summary.checkpoint = start.commit_ts
        self._counters.set_position(start.commit_ts)
        _log_start_position(checkpoint, self._first_window, sink)
        self._ownership.set_position(
            start.commit_ts,
            wrote=checkpoint is not None and checkpoint.owner == self._ownership.pipeline,
        )
        _overrides.check_blocked(checkpoint, self._relay)
        if start.in_flight is not None:
            self._aligned_chunks.cancel_within(start.commit_ts, start.in_flight.until)
        return start

    def _write(self, batch: WindowBatch) -> None:
        steps = self._postponed.take(batch, batch.steps(self._limits.stop), self._relay)
        if steps is None:
            return
        self._write_steps(batch, steps)
        self._postponed.written()

    def _commit_postponed(self) -> None:
        """Take the checkpoint to where an aligned chunk expects it."""
        if (waiting := self._postponed.release()) is not None:
            self._write_steps(waiting.batch, iter([waiting.step]))

    def _write_steps(self, batch: WindowBatch, steps: Iterator[Step]) -> None:
        def confirm(step: Step, *, begun: bool = False) -> None:
            batch.confirm(step, begun=begun)
            _overrides.record_begun(self._relay, batch, step)

        if self._conflicts is not None:
            self._conflicts.begin(batch, self._is_over)
        idle_s, began = batch.idle_s, time.perf_counter()
        written = self._sink.run(
            self._counters.count_steps(self._with_ownership_check(steps)),
            confirm,
        )
        busy_s = time.perf_counter() - began - (batch.idle_s - idle_s)
        self._adaptive_limits.observe(batch.windows, busy_s, written.round_trip_s)
        skew_ms = self._counters.upstream_skew_ms
        report = report_of(batch, written, skew_ms)
        self._counters.record_batch(report, skew_ms)
        if self._conflicts is not None:
            self._counters.record_conflicts(self._conflicts.written(batch))
        self._summary.add(report, written.warnings)
        self._progress.add(report)
        if self._on_batch is not None:
            self._on_batch(report)
        self._ownership.set_position(batch.hi, wrote=True)
        self._consumer_position.set_position(batch.hi)
        self._summary.warn(_overrides.settle_overrides(self._relay, batch.hi))
        self._backoff.over()

    def _apply_chunk(self, chunk: AlignedChunk, prefetcher: BatchPrefetcher) -> None:
        """Write an aligned chunk at the present checkpoint."""

        def should_continue() -> bool:
            self._ownership.check()
            return self._wait()

        def confirm(step: Step, *, begun: bool = False) -> None:
            self._ownership.check()
            check_not_paused(self._relay, step.commit_ts)

        self._aligned_chunks.apply(
            chunk, self._sink, lambda: prefetcher.changes_since, should_continue, confirm
        )
        self._backoff.over()

    def _on_permanent_error(self, error: Exception) -> None:
        """Prepare for raising a permanent error.

        A batch that may be downstream in part is blocked until an operator decides. If the failing
        transaction can be found, raises an ApplyError that names it.
        """
        sink, batch = self._sink, self._batch
        if (
            isinstance(error, ApplyError)
            and error.found
            and batch is not None
            and isinstance(sink, RemembersBlocked)
        ):
            sink.remember_blocked(str(error), [override.named for override in batch.overrides])
        sink.close()
        if batch is None:
            return
        refused = error if isinstance(error, ApplyError) else None
        try:
            find_failing_transaction(
                error,
                batch,
                self._relay,
                prepare_options(self._settings),
                self._settings.downstream,
            )
        except ApplyError as named:
            refused = refused and named
            raise
        finally:
            if refused is not None:
                self._counters.record_refusal(refused)

    def _with_ownership_check(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield the steps, and check before each that no other pipeline writes."""
        for step in steps:
            self._ownership.check()
            yield step

    def _is_over(self) -> bool:
        return self._limits.is_over(self._summary.checkpoint)

    def _is_over_for_owner(self) -> bool:
        self._ownership.check()  # also while there is nothing to write
        self._progress.maybe_log()
        return self._is_over()

    def _wait(self) -> bool:
        return not self._limits.stop.wait(_POLL_INTERVAL_S) and not self._is_over()


def _log_start_position(checkpoint: Checkpoint | None, first: WindowRecord, sink: Sink) -> None:
    if checkpoint is None:
        log.info(
            "no checkpoint on %s: starting at the relay log's beginning, commit_ts=%s",
            sink.address,
            first.lo,
        )
    else:
        log.info("continuing from checkpoint %s on %s", checkpoint.commit_ts, sink.address)
        if checkpoint.needs_safe_mode:
            log.warning(
                "safe mode: changes after commit_ts %s through %s may be downstream already; they"
                " replace what is there, unchecked",
                checkpoint.commit_ts,
                checkpoint.safe_until,
            )
