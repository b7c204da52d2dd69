"""Apply a past range of windows to another sink than the pipeline's.

Preparing and sinks are the same, and nothing of the running pipeline is touched: its orders don't
count here, its checkpoint isn't read, the registry isn't written. Overrides of transactions and DDL
count as they did the first time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.errors import SluiceError, ours
from sluice.etl.apply._adaptive_limits import AdaptiveLimits
from sluice.etl.apply._batch import OverridesChanged, WaitStopped
from sluice.etl.apply._metrics import ApplySummary, BatchReport, report_of
from sluice.etl.apply._prefetch import BatchPrefetcher, Prepare
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.sinks import Sink
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Apply
from sluice.relay import (
    AlignedChunk,
    AlignedChunks,
    Control,
    Overrides,
    PendingChunks,
    WindowLog,
    WindowRecord,
)

__all__ = ["OutsideReplayRange", "ReplayRange", "apply_range"]

log = logging.getLogger("sluice.reapply")


class OutsideReplayRange(SluiceError):
    """The sink's checkpoint lies outside of the range."""

    hint = "begin with another sink"


OnBatch = Callable[[BatchReport, int], None]
"""Called with each durable batch and the bytes of its windows' parts. May raise, to end there."""


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Everything committed after `after_ts` through `until_ts` (TSO)."""

    after_ts: int
    until_ts: int


class _NoAlignedChunks(AlignedChunks):
    def agenda(self, from_ts: int) -> PendingChunks:
        return PendingChunks()


class _ReadOnlyLog:
    """Show windows without the running pipeline's orders and aligned chunks."""

    def __init__(self, windows: WindowLog) -> None:
        self._windows = windows
        self.aligned_chunks: AlignedChunks = _NoAlignedChunks(windows.storage)

    @property
    def url(self) -> str:
        return self._windows.url

    @property
    def overrides(self) -> Overrides:
        return self._windows.overrides

    def next(self, lo: int) -> WindowRecord | None:
        return self._windows.next(lo)

    def find(self, ts: int) -> WindowRecord | None:
        return self._windows.find(ts)

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[WindowRecord]:
        return self._windows.windows(from_ts, to_ts)

    def control(self) -> Control:
        return Control()


def apply_range(  # noqa: PLR0913 independent parts, passed by name
    windows: WindowLog,
    past: ReplayRange,
    sink: Sink,
    *,
    prepare: Prepare,
    limits: Apply,
    stop: threading.Event,
    on_batch: OnBatch,
) -> ApplySummary:
    """Apply the range of `windows` (a relay log's, or an archive's) to `sink`, then close it.

    Starts at the sink's own checkpoint, or at the range's beginning if it has none; ends at the
    range's end, or at `stop`. Transient errors are retried. Raises OutsideReplayRange, ApplyError,
    DdlError, CheckpointMovedError, CheckpointError, DownstreamError, relay errors, and what
    `prepare` and `on_batch` raise.
    """
    with contextlib.closing(sink):
        return _ReplayLoop(windows, past, sink, prepare, limits, stop, on_batch).run()


class _ReplayLoop:
    def __init__(  # noqa: PLR0913 the arguments of `apply_range`
        self,
        windows: WindowLog,
        past: ReplayRange,
        sink: Sink,
        prepare: Prepare,
        limits: Apply,
        stop: threading.Event,
        on_batch: OnBatch,
    ) -> None:
        self._relay = _ReadOnlyLog(windows)
        self._range = past
        self._sink = sink
        self._prepare = prepare
        self._limits = AdaptiveLimits(limits)
        self._stop = stop
        self._on_batch = on_batch
        self._summary = ApplySummary()
        self._backoff = RetryBackoff(log, "applying past windows")
        self._prefetcher: BatchPrefetcher | None = None

    def run(self) -> ApplySummary:
        while not self._is_over():
            try:
                self._apply()
            except WaitStopped:
                break
            except OverridesChanged:
                log.info("overrides for this batch changed: preparing it again")
            except Exception as error:
                cause = ours(error)
                if not cause.transient:
                    raise
                self._summary.retries += 1
                self._stop.wait(self._backoff.after(cause, f"at {self._summary.checkpoint}"))
            finally:
                if self._prefetcher is not None:
                    self._prefetcher.stop()
        return self._summary

    def _apply(self) -> None:
        self._prefetcher = None
        checkpoint = self._recover()
        self._prefetcher = BatchPrefetcher(
            self._relay, self._prepare, self._limits, checkpoint, self._range.until_ts
        )
        for batch in self._prefetcher.items(self._is_over):
            if isinstance(batch, AlignedChunk):
                continue
            written = self._sink.run(batch.steps(self._stop), batch.confirm)
            report = report_of(batch, written)
            self._summary.add(report, written.warnings)
            self._backoff.over()
            self._on_batch(
                report, sum(part.bytes for window in batch.windows for part in window.parts)
            )

    def _recover(self) -> Checkpoint:
        past = self._range
        found = self._sink.recover() or Checkpoint(past.after_ts)
        if not past.after_ts <= found.commit_ts <= past.until_ts:
            raise OutsideReplayRange(
                f"{self._sink.address} is at {found.commit_ts}, which isn't between {past.after_ts}"
                f" and {past.until_ts}"
            )
        self._summary.checkpoint = found.commit_ts
        return found

    def _is_over(self) -> bool:
        return self._stop.is_set() or self._summary.checkpoint >= self._range.until_ts
