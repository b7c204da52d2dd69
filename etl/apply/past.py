"""A past range of windows, applied to another sink than the pipeline's: the same preparing, the same sinks, and nothing
of the running pipeline is touched. Its orders don't count here, its checkpoint isn't looked at, the registry isn't told
of anything; what operators decided about transactions and DDL counts as it did the first time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from errors import SluiceError, ours
from etl.apply._ahead import Ahead, Prepare
from etl.apply._batch import DecidedAnewError, StoppedError
from etl.apply._batch_size import BatchSize
from etl.apply._report import ApplySummary, BatchReport, report_of
from etl.downstream import Checkpoint
from etl.settings import Apply
from etl.sinks import Sink
from etl.waiting import Waiting
from relay import Agenda, Appointment, Appointments, Control, Decisions, Window, WindowLog

__all__ = ["PastRange", "PastRangeError", "apply_past"]

log = logging.getLogger("sluice.reapply")


class PastRangeError(SluiceError):
    """The sink isn't between the ends of the range."""

    way_out = "begin with another sink"


OnBatch = Callable[[BatchReport, int], None]
"""Told of each batch that is durable, and of the bytes of its windows' parts. May raise, to end it there."""


@dataclass(frozen=True, slots=True)
class PastRange:
    """What was committed after `after_ts` through `until_ts` (TSO)."""

    after_ts: int
    until_ts: int


class _NoAppointments(Appointments):
    def agenda(self, from_ts: int) -> Agenda:
        return Agenda()


class _PastLog:
    """Windows in which the orders to the running pipeline aren't seen, and its appointments are none."""

    def __init__(self, windows: WindowLog) -> None:
        self._windows = windows
        self.appointments: Appointments = _NoAppointments(windows.storage)

    @property
    def url(self) -> str:
        return self._windows.url

    @property
    def decisions(self) -> Decisions:
        return self._windows.decisions

    def next(self, lo: int) -> Window | None:
        return self._windows.next(lo)

    def find(self, ts: int) -> Window | None:
        return self._windows.find(ts)

    def windows(self, from_ts: int, to_ts: int | None = None) -> Iterator[Window]:
        return self._windows.windows(from_ts, to_ts)

    def control(self) -> Control:
        return Control()


def apply_past(  # noqa: PLR0913 what it works with, by name
    windows: WindowLog,
    past: PastRange,
    sink: Sink,
    *,
    prepare: Prepare,
    limits: Apply,
    stop: threading.Event,
    on_batch: OnBatch,
) -> ApplySummary:
    """Apply the range of `windows` (a relay log's, or an archive's) to `sink`, from where the sink's own checkpoint is,
    or from the range's beginning if it has none; until the range's end, or `stop`. The sink is closed then.

    What passes is tried again. Raises PastRangeError, ApplyError, DdlError, CheckpointMovedError, CheckpointError,
    DownstreamError, relay errors, and what `prepare` and `on_batch` raise.
    """
    with contextlib.closing(sink):
        return _PastLoop(windows, past, sink, prepare, limits, stop, on_batch).run()


class _PastLoop:
    def __init__(  # noqa: PLR0913 as apply_past
        self,
        windows: WindowLog,
        past: PastRange,
        sink: Sink,
        prepare: Prepare,
        limits: Apply,
        stop: threading.Event,
        on_batch: OnBatch,
    ) -> None:
        self._relay = _PastLog(windows)
        self._past = past
        self._sink = sink
        self._prepare = prepare
        self._limits = BatchSize(limits)
        self._stop = stop
        self._on_batch = on_batch
        self._summary = ApplySummary()
        self._waiting = Waiting(log, "applying past windows")
        self._ahead: Ahead | None = None

    def run(self) -> ApplySummary:
        while not self._is_over():
            try:
                self._apply()
            except StoppedError:
                break
            except DecidedAnewError:
                log.info("operators decided about what is being applied: preparing it again")
            except Exception as error:
                told = ours(error)
                if not told.transient:
                    raise
                self._summary.retries += 1
                self._stop.wait(self._waiting.after(told, f"at {self._summary.checkpoint}"))
            finally:
                if self._ahead is not None:
                    self._ahead.stop()
        return self._summary

    def _apply(self) -> None:
        self._ahead = None
        checkpoint = self._recover()
        self._ahead = Ahead(self._relay, self._prepare, self._limits, checkpoint, self._past.until_ts)
        for batch in self._ahead.items(self._is_over):
            if isinstance(batch, Appointment):
                continue
            written = self._sink.run(batch.steps(self._stop), batch.confirm)
            report = report_of(batch, written)
            self._summary.add(report, written.warnings)
            self._waiting.over()
            self._on_batch(report, sum(part.bytes for window in batch.windows for part in window.parts))

    def _recover(self) -> Checkpoint:
        past = self._past
        found = self._sink.recover() or Checkpoint(past.after_ts)
        if not past.after_ts <= found.commit_ts <= past.until_ts:
            raise PastRangeError(
                f"{self._sink.address} is at {found.commit_ts}, which isn't between {past.after_ts} and {past.until_ts}"
            )
        self._summary.checkpoint = found.commit_ts
        return found

    def _is_over(self) -> bool:
        return self._stop.is_set() or self._summary.checkpoint >= self._past.until_ts
