"""The apply loop: landed windows from the relay log, prepared by Spark, written downstream, checkpoint by checkpoint.

While one batch is being written the next is prepared, at most one ahead; batches are written in order. The downstream's
checkpoint row is the only state: any trouble with the connection leads back to reading it.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from etl._applier import Applier, ApplyError
from etl._prepare_job import SparkPreparer
from etl._steps import STEP_SCHEMA, Step, from_table, to_batches
from etl.checkpoint import Checkpoint, CheckpointTable
from etl.filters import Filter
from etl.prepare import describe_window
from etl.settings import Settings
from etl.sinks import DownstreamError, MySQLSink, is_transient
from relay import RelayGapError, RelayLog, Window

__all__ = ["ApplyError", "ApplySummary", "BatchReport", "Prepare", "local_preparer", "run_apply"]

log = logging.getLogger("sluice.apply")

Prepare = Callable[[Sequence[Mapping[str, Any]]], pa.Table]
"""Windows as `describe_window` gives them to one table in STEP_SCHEMA."""

_POLL_S = 0.02
_CONTROL_INTERVAL_S = 0.2
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LAST_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch of windows, written. `stages_ms`: read, decode, reduce and format inside the preparing job; prepare, the whole
    job; wait, how long writing stood idle for it; send, ddl and commit downstream."""

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
    """What a run did. `checkpoint` is the commit timestamp it got to; `rows` are net rows, `changes` row changes upstream."""

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
        self.warnings = (self.warnings + warnings)[-_LAST_WARNINGS:]


@dataclass(frozen=True, slots=True)
class _Batch:
    windows: tuple[Window, ...]
    after_ts: int
    hi: int
    steps: pa.Table
    prepare_s: float


def run_apply(
    settings: Settings,
    *,
    run_seconds: float | None = None,
    stop: threading.Event | None = None,
    until_ts: int | None = None,
    prepare: Prepare | None = None,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> ApplySummary:
    """Apply landed windows until `run_seconds` are over, `stop` is set, or the checkpoint reaches `until_ts`.

    `prepare` is the Spark job by default. Connection loss, deadlocks and lock waits are retried from the checkpoint. Raises
    ApplyError, DdlError, CheckpointMovedError, CheckpointError, DownstreamError (refused for good), relay errors, and what
    `prepare` raises.
    """
    stop = stop or threading.Event()
    end = None if run_seconds is None else time.monotonic() + run_seconds
    relay = RelayLog.open(settings.relay.url)
    summary = ApplySummary()
    failures = 0

    def over() -> bool:
        reached = until_ts is not None and summary.checkpoint >= until_ts
        return stop.is_set() or reached or (end is not None and time.monotonic() >= end)

    if prepare is None:
        prepare = SparkPreparer(settings)
        prepare.warm_up()
    first = _wait_for_first(relay, over)
    if first is None:
        return summary
    sink = MySQLSink(settings.downstream)
    downstream = settings.downstream
    table = CheckpointTable(sink, first.cluster_id, downstream.checkpoint_schema, downstream.checkpoint_table)
    filters = Filter()
    applier = Applier(sink, table, filters)
    try:
        while not over():
            ahead: _Ahead | None = None
            try:
                checkpoint = applier.recover()
                summary.checkpoint = checkpoint.commit_ts if checkpoint else first.lo
                _say_where(checkpoint, first, sink)
                ahead = _Ahead(relay, prepare, settings, summary.checkpoint)
                for batch, waited in ahead.batches(over):
                    _write(applier, batch, waited, summary, on_batch)
                    failures = 0
            except Exception as error:
                if not is_transient(error) and not _is_spark_transient(error):
                    raise
                if not isinstance(error, DownstreamError) and hasattr(prepare, "reset"):
                    prepare.reset()
                delay = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                failures += 1
                summary.retries += 1
                log.warning("%.500s; trying again in %.1f s from the checkpoint", error, delay)
                stop.wait(delay)
            finally:
                if ahead is not None:
                    ahead.stop()
    finally:
        sink.close()
        if hasattr(prepare, "reset"):
            prepare.reset()
    return summary


def local_preparer(settings: Settings) -> Prepare:
    """Prepares in this process, without Spark: for tests and repairs."""
    from etl.prepare import prepare

    def run(windows: Sequence[Mapping[str, Any]]) -> pa.Table:
        return pa.Table.from_batches(prepare(settings.relay.url, windows), schema=STEP_SCHEMA)

    return run


def _is_spark_transient(error: BaseException) -> bool:
    if not type(error).__module__.startswith(("pyspark", "grpc", "etl.spark_session", "builtins")):
        return False
    from etl.spark_session import is_transient as transient

    return transient(error)


def _write(applier: Applier, batch: _Batch, waited: float, summary: ApplySummary, on_batch: Callable[[BatchReport], None] | None) -> None:
    written = applier.run(from_table(batch.steps))
    hi = batch.hi
    stages = dict(written.stages_ms) | {
        "prepare": batch.prepare_s * 1000, "wait": waited * 1000, "send": written.send_s * 1000, "ddl": written.ddl_s * 1000,
        "commit": written.commit_s * 1000,
    }  # fmt: skip
    report = BatchReport(
        batch.after_ts, hi, len(batch.windows), sum(w.transactions for w in batch.windows), written.changes, written.rows, written.ddls,
        {name: round(value, 3) for name, value in stages.items()}, round(time.time() * 1000 - (hi >> 18), 1),
    )  # fmt: skip
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


def _say_where(checkpoint: Checkpoint | None, first: Window, sink: MySQLSink) -> None:
    if checkpoint is None:
        log.info("no checkpoint on %s: beginning at %s, where the relay log begins", sink.address, first.lo)
    else:
        log.info("going on from checkpoint %s on %s", checkpoint.commit_ts, sink.address)
        if not checkpoint.consistent:
            log.warning(
                "the checkpoint was left inconsistent: changes after %s may be downstream already; let the Drainer that left it finish, "
                "or expect an error at the first of them", checkpoint.commit_ts,
            )  # fmt: skip


class _Ahead:
    """A thread that takes landed windows together and has them prepared, one batch ahead of the writer."""

    def __init__(self, relay: RelayLog, prepare: Prepare, settings: Settings, after_ts: int) -> None:
        self._relay = relay
        self._prepare = prepare
        self._limits = settings.apply
        self._after_ts = after_ts
        self._room = threading.Semaphore(1)
        self._ready: queue.Queue[_Batch | BaseException] = queue.Queue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluice-prepare", daemon=True)
        self._thread.start()

    def batches(self, over: Callable[[], bool]) -> Iterator[tuple[_Batch, float]]:
        """Prepared batches in order, with the seconds each was waited for, until `over`."""
        started = time.perf_counter()
        while not over():
            try:
                item = self._ready.get(timeout=0.1)
            except queue.Empty:
                continue
            self._room.release()
            if isinstance(item, BaseException):
                raise item
            yield item, time.perf_counter() - started
            started = time.perf_counter()

    def stop(self) -> None:
        """End the thread; a job that is running is waited for, up to a limit, then left alone: it writes nothing."""
        self._stopped.set()
        self._room.release()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            position = self._after_ts
            while True:
                self._room.acquire()
                windows = self._next(position)
                if not windows:
                    return
                started = time.perf_counter()
                hi = windows[-1].hi if self._until is None else min(windows[-1].hi, self._until)
                steps = self._steps(windows, position, hi)
                self._ready.put(_Batch(tuple(windows), position, hi, steps, time.perf_counter() - started))
                position = hi
        except BaseException as error:
            self._ready.put(error)

    def _steps(self, windows: list[Window], position: int, hi: int) -> pa.Table:
        if any(window.changes or window.ddls for window in windows):
            return self._prepare([describe_window(window, position, hi) for window in windows])
        step = Step("commit", hi, detail={"schema_version": windows[-1].schema_version})
        return pa.Table.from_batches(list(to_batches(iter([step]))))

    def _next(self, position: int) -> list[Window]:
        """The windows after `position` that are landed, as many as go together; waits for the first, and for operators.
        [] when stopped."""
        while (first := self._find(position) if self._may_go_on(position) else None) is None:
            if self._stopped.wait(_POLL_S):
                return []
        windows = [first]
        rows, size = first.changes, sum(part.bytes for part in first.parts)
        while not self._stopped.is_set() and (self._until is None or windows[-1].hi < self._until):
            following = self._relay.next(windows[-1].hi)
            if following is None:
                break
            rows += following.changes
            size += sum(part.bytes for part in following.parts)
            if rows > self._limits.max_rows or size > self._limits.max_bytes:
                break
            windows.append(following)
        return windows if not self._stopped.is_set() else []

    def _find(self, position: int) -> Window | None:
        window = self._relay.next(position)
        if window is not None or self._settled(position):
            return window
        window = self._relay.find(position)
        if window is not None and window.lo > position:
            raise RelayGapError(
                f"{self._relay.url}: the checkpoint is at {position}, but the next landed window begins at {window.lo}: what lies between was "
                "removed or never landed; land it again, or copy the downstream anew as of a later time and set its checkpoint"
            )
        self._at_boundary = position if window is None else -1
        return window

    def _may_go_on(self, position: int) -> bool:
        """Whether operators let applying go beyond `position`; what they said is read again now and then."""
        now = time.monotonic()
        if now >= self._control_due:
            self._control_due = now + _CONTROL_INTERVAL_S
            control = self._relay.control()
            if (control.apply_paused, control.apply_until_ts) != (self._paused, self._until):
                log.info(
                    "applying is %s by the relay log's control.json",
                    "paused" if control.apply_paused
                    else "allowed on" if control.apply_until_ts is None
                    else f"allowed through {control.apply_until_ts}",
                )  # fmt: skip
            self._paused, self._until = control.apply_paused, control.apply_until_ts
        return not self._paused and (self._until is None or position < self._until)

    _control_due = 0.0
    _paused = False
    _until: int | None = None
    _at_boundary = -1

    def _settled(self, position: int) -> bool:
        """Whether `position` is known to be the end of the chain, so that the next window must begin there: O(1) by name."""
        return self._at_boundary == position
