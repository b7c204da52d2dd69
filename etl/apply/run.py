"""The apply loop: landed windows from the relay log, prepared by Spark, written downstream, checkpoint by checkpoint.

While one batch is being written the next is prepared, at most one ahead; batches are written in order. The downstream's
checkpoint row is the only state: any trouble with the connection leads back to reading it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from errors import ours
from etl.apply import _decided
from etl.apply._ahead import Ahead, Prepare
from etl.apply._appointments import AppointmentKeeper
from etl.apply._batch import Batch, DecidedAnewError, HeldError, StoppedError, check_not_held
from etl.apply._batch_size import BatchSize
from etl.apply._counting import Counting
from etl.apply._other_sessions import OtherSessions
from etl.apply._poison import name_poison
from etl.apply._prepare_job import SparkPreparer
from etl.apply._refusal import check_refusal
from etl.apply._relay_upkeep import RelayUpkeep
from etl.apply._report import ApplySummary, BatchReport, Progress, report_of
from etl.apply._takeover import look_ahead
from etl.downstream import Checkpoint
from etl.ownership import NotSoleWriterError, Pipeline, SoleWriter, await_copy
from etl.prepare import PrepareOptions
from etl.settings import Downstream, Settings
from etl.sinks import ApplyError, Remembers, Sink, TakesOver, open_sink, read_checkpoint, sink_shape
from etl.spark.place import Place
from etl.steps import Step
from etl.waiting import Waiting
from relay import Appointment, RelayLog, Window
from relay.measures import Measures

__all__ = ["ApplyError", "ApplySummary", "BatchReport", "NotSoleWriterError", "Prepare", "run_apply"]

log = logging.getLogger("sluice.apply")

_POLL_S = 0.02
_FAR_POLL_S = 0.25  # in an object store, where each look is charged for


@runtime_checkable
class HoldsConnection(Protocol):
    """A preparer that holds a connection."""

    def close(self) -> None:
        """Drop the connection; the next use connects anew."""


def run_apply(  # noqa: PLR0913 one optional wish each, by name
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
    """Apply landed windows until `run_seconds` are over, `stop` is set, or the checkpoint is exactly at `until_ts`.

    `prepare` is the Spark job by default. `summary` is filled meanwhile, and what is returned. `writing` is entered
    while a batch is written. Connection loss,
    deadlocks and lock waits are retried from the checkpoint.
    Raises ApplyError, DdlError, CheckpointMovedError, NotSoleWriterError, CheckpointError, DownstreamError (refused for
    good), relay errors, and what `prepare` raises.
    """
    limits = _Limits(run_seconds, stop or threading.Event(), until_ts)
    if prepare is None:
        options, role = prepare_options(settings), settings.spark_role("apply")
        prepare = SparkPreparer(Place(settings.spark, role, settings.relay.url), options)
        prepare.warm_up()
    try:
        first = _wait_for_first(settings.open_relay(), limits)
        summary = summary or ApplySummary()
        if first is None:
            return summary
        with contextlib.closing(_Loop(settings, first, prepare, limits, on_batch, summary, writing)) as loop:
            return loop.run()
    finally:
        if isinstance(prepare, HoldsConnection):
            prepare.close()


def prepare_options(settings: Settings) -> PrepareOptions:
    """How the settings want windows prepared."""
    return PrepareOptions(
        sink_shape(settings.target, settings.apply.mode),
        settings.apply.worker_count,
        settings.time_zone,
        settings.filters,
        settings.routes,
        settings.ignored_ts,
    )


class _Limits:
    """How long a run goes on."""

    def __init__(self, run_seconds: float | None, stop: threading.Event, until_ts: int | None) -> None:
        self._end = None if run_seconds is None else time.monotonic() + run_seconds
        self.stop = stop
        self.until_ts = until_ts

    def is_over(self, checkpoint_ts: int = 0) -> bool:
        """Whether the run ends with the checkpoint at this TSO."""
        reached = self.until_ts is not None and checkpoint_ts >= self.until_ts
        return self.stop.is_set() or reached or (self._end is not None and time.monotonic() >= self._end)


class _Loop:
    """Applies from where the downstream is, and again after whatever passes."""

    def __init__(  # noqa: PLR0913 what `run_apply` was given
        self,
        settings: Settings,
        first: Window,
        prepare: Prepare,
        limits: _Limits,
        on_batch: Callable[[BatchReport], None] | None,
        summary: ApplySummary,
        writing: AbstractContextManager[object],
    ) -> None:
        self._writing = writing
        self._settings = settings
        self._first = first
        self._prepare = prepare
        self._limits = limits
        self._on_batch = on_batch
        self._relay = settings.open_relay()
        self._pipeline = pipeline = Pipeline.of(settings)
        self._sole = SoleWriter(pipeline, settings.upstream, self._relay)
        self._upkeep = RelayUpkeep(self._relay, pipeline.downstream)
        self._sink = open_sink(settings, first.cluster_id)
        if isinstance(self._sink, TakesOver):
            self._sink.guard(self._sole)
        self._appointments = AppointmentKeeper(self._relay, settings.rules, settings.apply.appointment_wait_ms)
        self._counting = Counting(self._relay, pipeline.downstream)
        self._others = (
            OtherSessions(target, settings.routes, Measures(self._relay, pipeline.downstream), self._counting.met)
            if isinstance(target := settings.target, Downstream)
            else None
        )
        self._size = BatchSize(settings.apply)
        self._summary = summary
        self._waiting = Waiting(log, "applying")
        self._progress = Progress()
        self._ahead: Ahead | None = None
        self._batch: Batch | None = None
        """What is being written, or was last, since the checkpoint was read."""

    def run(self) -> ApplySummary:
        while not self._is_over():
            try:
                self._apply()
            except StoppedError:
                break
            except HeldError as error:
                log.info("%s", error)
            except DecidedAnewError:
                log.info("operators decided about what is being applied: preparing it again from the checkpoint on")
            except Exception as error:
                told = ours(error)
                self._counting.failed(error)
                if not told.transient:
                    self._give_up(error)
                    raise
                self._summary.retries += 1
                self._limits.stop.wait(self._waiting.after(told, f"at checkpoint {self._summary.checkpoint}"))
            finally:
                if self._ahead is not None:
                    self._ahead.stop()
        return self._summary

    def close(self) -> None:
        self._progress.say(last=True)
        if self._others is not None:
            self._others.close()
        self._counting.close()
        self._upkeep.close()
        self._sole.close()
        self._sink.close()

    def _apply(self) -> None:
        """From the checkpoint on, until the run is over."""
        self._ahead = self._batch = None
        target, cluster_id = self._settings.target, self._first.cluster_id
        await_copy(self._relay, self._pipeline.downstream, lambda: read_checkpoint(target, cluster_id) is not None)
        self._sole.check()
        checkpoint = self._recover()
        self._summary.warn(_decided.settle(self._relay, checkpoint.commit_ts))
        self._ahead = Ahead(self._relay, self._prepare, self._size, checkpoint, self._limits.until_ts)
        for item in self._ahead.items(self._is_over_for_sole_writer):
            if isinstance(item, Appointment):
                self._keep(item, self._ahead)
                continue
            self._batch = item
            with self._writing:
                self._write(item)

    def _recover(self) -> Checkpoint:
        """Where to go on from. Without a checkpoint that is where the relay log begins."""
        sink = self._sink
        checkpoint = sink.recover()
        if checkpoint is not None and checkpoint.needs_safe_mode and isinstance(sink, TakesOver):
            checkpoint = look_ahead(sink, checkpoint, self._relay, self._wait, self._settings.rules)
        start = checkpoint or Checkpoint(self._first.lo)
        self._summary.checkpoint = start.commit_ts
        self._counting.at(start.commit_ts)
        _say_where(checkpoint, self._first, sink)
        self._sole.at(start.commit_ts, wrote=checkpoint is not None and checkpoint.owner == self._sole.pipeline)
        check_refusal(checkpoint, self._relay)
        if start.flight is not None:
            self._appointments.void_inside(start.commit_ts, start.flight.until)
        return start

    def _write(self, batch: Batch) -> None:

        def confirm(step: Step, *, begun: bool = False) -> None:
            batch.confirm(step, begun=begun)
            _decided.begin(self._relay, batch, step)

        waited_s, began = batch.waited_s, time.perf_counter()
        written = self._sink.run(self._counting.through(self._guarded(batch.steps(self._limits.stop))), confirm)
        busy_s = time.perf_counter() - began - (batch.waited_s - waited_s)
        self._size.wrote(batch.windows, busy_s, written.round_trip_s)
        report = report_of(batch, written)
        self._counting.wrote(report)
        self._summary.add(report, written.warnings)
        self._progress.add(report)
        if self._on_batch is not None:
            self._on_batch(report)
        self._sole.at(batch.hi, wrote=True)
        self._upkeep.at(batch.hi)
        self._summary.warn(_decided.settle(self._relay, batch.hi))
        self._waiting.over()

    def _keep(self, appointment: Appointment, ahead: Ahead) -> None:
        """Rows of a job's, where the checkpoint is."""

        def go_on() -> bool:
            self._sole.check()
            return self._wait()

        def confirm(step: Step, *, begun: bool = False) -> None:
            self._sole.check()
            check_not_held(self._relay, step.commit_ts)

        self._appointments.keep(appointment, self._sink, lambda: ahead.changes_since, go_on, confirm)
        self._waiting.over()

    def _give_up(self, error: Exception) -> None:
        """Before a terminal error goes up: have it refused again if a part may be downstream, and find out which
        transaction is at fault, for an ApplyError that names it."""
        sink, batch = self._sink, self._batch
        if isinstance(error, ApplyError) and error.found and batch is not None and isinstance(sink, Remembers):
            sink.remember(str(error), [decision.commit_ts for decision in batch.decisions])
        sink.close()
        if batch is not None:
            name_poison(error, batch, self._relay, prepare_options(self._settings), self._settings.downstream)

    def _guarded(self, steps: Iterable[Step]) -> Iterator[Step]:
        """The steps, for as long as nobody else writes."""
        for step in steps:
            self._sole.check()
            yield step

    def _is_over(self) -> bool:
        return self._limits.is_over(self._summary.checkpoint)

    def _is_over_for_sole_writer(self) -> bool:
        self._sole.check()  # also while there is nothing to write
        self._progress.say()
        return self._is_over()

    def _wait(self) -> bool:
        return not self._limits.stop.wait(_POLL_S) and not self._is_over()


def _wait_for_first(relay: RelayLog, limits: _Limits) -> Window | None:
    while not limits.is_over():
        window = relay.first()
        if window is not None:
            return window
        limits.stop.wait(_FAR_POLL_S if relay.storage.is_remote else _POLL_S)
    return None


def _say_where(checkpoint: Checkpoint | None, first: Window, sink: Sink) -> None:
    if checkpoint is None:
        log.info("no checkpoint on %s: beginning at %s, where the relay log begins", sink.address, first.lo)
    else:
        log.info("going on from checkpoint %s on %s", checkpoint.commit_ts, sink.address)
        if checkpoint.needs_safe_mode:
            log.warning(
                "safe mode: changes after commit_ts %s, through %s, may be downstream already; they are written so that"
                " it makes no difference, without checking what was there",
                checkpoint.commit_ts,
                checkpoint.safe_until,
            )
