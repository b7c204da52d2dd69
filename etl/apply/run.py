"""The apply loop: landed windows from the relay log, prepared by Spark, written downstream, checkpoint by checkpoint.

While one batch is being written the next is prepared, at most one ahead; batches are written in order. The downstream's
checkpoint row is the only state: any trouble with the connection leads back to reading it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from errors import ours
from etl.apply._ahead import Ahead, Batch, DecidedAnewError, HeldError, Prepare, StoppedError, decided_about
from etl.apply._poison import name_poison
from etl.apply._prepare_job import SparkPreparer
from etl.apply._refusal import check_refusal
from etl.apply._relay_upkeep import RelayUpkeep
from etl.apply._takeover import look_ahead
from etl.downstream import Checkpoint
from etl.ownership import NotSoleWriterError, SoleWriter
from etl.prepare import PrepareOptions
from etl.rules import note_late, note_used
from etl.settings import Settings
from etl.sinks import ApplyError, Remembers, Sink, TakesOver, open_sink, sink_shape
from etl.spark.errors import SparkError
from etl.steps import Step
from etl.waiting import Waiting
from relay import RelayLog, Window
from upstream import tso

__all__ = ["ApplyError", "ApplySummary", "BatchReport", "NotSoleWriterError", "Prepare", "run_apply"]

log = logging.getLogger("sluice.apply")

_POLL_S = 0.02
_LAST_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch of windows, written. `stages_ms`: read, decode, reduce and format inside the preparing job; prepare,
    the whole job; wait, how long writing stood idle for it; send, ddl and commit downstream.
    """

    lo: int
    hi: int
    windows: int
    transactions: int
    changes: int
    rows: int
    ddls: int
    stages_ms: dict[str, float]
    lag_ms: float
    """Wall clock at the end minus the physical part of `hi`."""


@dataclass(slots=True)
class ApplySummary:
    """What a run did. `checkpoint` is the commit timestamp it got to; `rows` are net rows, `changes` row changes
    upstream.
    """

    checkpoint: int = 0
    batches: int = 0
    windows: int = 0
    transactions: int = 0
    changes: int = 0
    rows: int = 0
    ddls: int = 0
    retries: int = 0
    warnings: list[str] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def _add(self, report: BatchReport, warnings: list[str]) -> None:
        self.checkpoint = report.hi
        self.batches += 1
        for name in ("windows", "transactions", "changes", "rows", "ddls"):
            setattr(self, name, getattr(self, name) + getattr(report, name))
        for stage, milliseconds in report.stages_ms.items():
            self.stages_ms[stage] = round(self.stages_ms.get(stage, 0.0) + milliseconds, 3)
        self.warn(warnings)

    def warn(self, warnings: list[str]) -> None:
        """Add warnings; the last ones are kept."""
        self.warnings = (self.warnings + warnings)[-_LAST_WARNINGS:]


def run_apply(
    settings: Settings,
    *,
    run_seconds: float | None = None,
    stop: threading.Event | None = None,
    until_ts: int | None = None,
    prepare: Prepare | None = None,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> ApplySummary:
    """Apply landed windows until `run_seconds` are over, `stop` is set, or the checkpoint is exactly at `until_ts`.

    `prepare` is the Spark job by default. Connection loss, deadlocks and lock waits are retried from the checkpoint.
    Raises ApplyError, DdlError, CheckpointMovedError, NotSoleWriterError, CheckpointError, DownstreamError (refused for
    good), relay errors, and what `prepare` raises.
    """
    stop = stop or threading.Event()
    end = None if run_seconds is None else time.monotonic() + run_seconds
    relay = RelayLog.open(settings.relay.url)
    summary = ApplySummary()
    waiting = Waiting(log, "applying")

    def over() -> bool:
        reached = until_ts is not None and summary.checkpoint >= until_ts
        return stop.is_set() or reached or (end is not None and time.monotonic() >= end)

    if prepare is None:
        prepare = SparkPreparer(settings.spark.remote, settings.relay.url, prepare_options(settings))
        prepare.warm_up()
    first = _wait_for_first(relay, over)
    if first is None:
        return summary
    sole = SoleWriter(settings, relay)
    upkeep = RelayUpkeep(relay, settings)

    def over_or_not_alone() -> bool:
        sole.check()  # also while there is nothing to write
        return over()

    sink = open_sink(settings, first.cluster_id)
    if isinstance(sink, TakesOver):
        sink.guard(sole)
    try:
        while not over():
            ahead: Ahead | None = None
            batch: Batch | None = None
            try:
                sole.check()
                checkpoint = sink.recover()
                if checkpoint is not None and checkpoint.needs_safe_mode and isinstance(sink, TakesOver):
                    checkpoint = look_ahead(
                        sink, checkpoint, relay, lambda: not stop.wait(_POLL_S) and not over(), settings
                    )
                summary.checkpoint = checkpoint.commit_ts if checkpoint else first.lo
                _say_where(checkpoint, first, sink)
                mine = checkpoint is not None and checkpoint.owner == sole.pipeline
                sole.at(summary.checkpoint, wrote=mine)
                check_refusal(checkpoint, relay)
                flight = checkpoint.flight if checkpoint else None
                safe_until = checkpoint.safe_until if checkpoint else 0
                ahead = Ahead(relay, prepare, settings.apply, summary.checkpoint, flight, safe_until, until_ts)
                for batch in ahead.batches(over_or_not_alone):
                    _write(sink, batch, _guarded(batch.steps(stop), sole), summary, on_batch)
                    sole.at(summary.checkpoint, wrote=True)
                    upkeep.at(summary.checkpoint)
                    summary.warn(note_used(relay, batch.decisions))
                    summary.warn(note_late(relay, decided_about(relay, batch), batch.decisions))
                    waiting.over()
            except StoppedError:
                break
            except HeldError as error:
                log.info("%s", error)
            except DecidedAnewError:
                log.info("operators decided about what is being applied: preparing it again from the checkpoint on")
            except Exception as error:
                told = ours(error)
                if not told.transient:
                    if (
                        isinstance(error, ApplyError)
                        and error.found
                        and batch is not None
                        and isinstance(sink, Remembers)
                    ):
                        sink.remember(str(error), [decision.commit_ts for decision in batch.decisions])
                    sink.close()
                    name_poison(error, settings, relay, prepare_options(settings), batch)
                    raise
                if isinstance(told, SparkError) and hasattr(prepare, "reset"):
                    prepare.reset()
                summary.retries += 1
                stop.wait(waiting.after(told, f"at checkpoint {summary.checkpoint}"))
            finally:
                if ahead is not None:
                    ahead.stop()
    finally:
        upkeep.close()
        sole.close()
        sink.close()
        if hasattr(prepare, "reset"):
            prepare.reset()
    return summary


def prepare_options(settings: Settings) -> PrepareOptions:
    """How the settings want windows prepared."""
    return PrepareOptions(
        sink_shape(settings),
        settings.apply.worker_count,
        settings.time_zone,
        settings.filters,
        settings.routes,
        settings.ignored_ts,
    )


def _guarded(steps: Iterable[Step], sole: SoleWriter) -> Iterator[Step]:
    """The steps, for as long as nobody else writes."""
    for step in steps:
        sole.check()
        yield step


def _write(
    sink: Sink,
    batch: Batch,
    steps: Iterable[Step],
    summary: ApplySummary,
    on_batch: Callable[[BatchReport], None] | None,
) -> None:
    written = sink.run(steps, batch.confirm)
    hi = batch.hi
    stages = dict(written.stages_ms) | {
        "prepare": batch.prepare_s * 1000,
        "wait": batch.waited_s * 1000,
        "send": written.send_s * 1000,
        "ddl": written.ddl_s * 1000,
        "commit": written.commit_s * 1000,
    }
    report = BatchReport(
        batch.after_ts,
        hi,
        len(batch.windows),
        sum(w.transactions for w in batch.windows),
        written.changes,
        written.rows,
        written.ddls,
        {name: round(value, 3) for name, value in stages.items()},
        round(time.time() * 1000 - tso.physical_ms(hi), 1),
    )
    summary._add(report, written.warnings)
    if report.changes or report.ddls:
        log.info("applied %s", json.dumps(asdict(report)))
    if on_batch is not None:
        on_batch(report)


def _wait_for_first(relay: RelayLog, over: Callable[[], bool]) -> Window | None:
    while not over():
        window = relay.first()
        if window is not None:
            return window
        time.sleep(_POLL_S)
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
