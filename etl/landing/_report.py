"""Report landing's figures: by window, by run, and in a log line every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from sluice.relay import RelayLog
from sluice.relay.measures import LAND, CounterRecorder, CounterStore

log = logging.getLogger("sluice.land")

_PROGRESS_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class LandedWindow:
    """A window that was just committed.

    `stages_ms`: plan, job (the Spark job until its result was popped), resolve, commit; within the
    job read, explode and write of the slowest range, and spark, the rest. `lag_ms`: from the
    upstream's clock at hi until the commit.
    """

    lo: int
    hi: int
    transactions: int
    changes: int
    ddls: int
    bytes: int
    stages_ms: dict[str, float]
    lag_ms: float


@dataclass(slots=True)
class LandSummary:
    """The sums of a run.

    `hi`: everything through this TSO is in the relay log. `bytes`: of parts.
    """

    hi: int = 0
    windows: int = 0
    transactions: int = 0
    changes: int = 0
    ddls: int = 0
    bytes: int = 0
    retries: int = 0
    stages_ms: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def taken(self) -> Self:
        """Return the sums and start again from zero, at the same `hi`."""
        taken = type(self)(*(getattr(self, each.name) for each in fields(self)))
        for name, value in asdict(type(self)(hi=self.hi)).items():
            setattr(self, name, value)
        return taken

    def add(self, window: LandedWindow) -> None:
        self.hi = window.hi
        self.windows += 1
        self.transactions += window.transactions
        self.changes += window.changes
        self.ddls += window.ddls
        self.bytes += window.bytes
        for stage, ms in window.stages_ms.items():
            self.stages_ms[stage] = round(self.stages_ms.get(stage, 0.0) + ms, 3)


class LandingProgressLog:
    """Log every few seconds what was landed since the last line."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._windows = self._transactions = self._changes = 0
        self._lag_ms = 0.0

    def add(self, window: LandedWindow) -> None:
        self._windows += 1
        self._transactions += window.transactions
        self._changes += window.changes
        self._lag_ms = max(self._lag_ms, window.lag_ms)

    def maybe_log(self, summary: LandSummary, held_back_by: str, *, last: bool = False) -> None:
        seconds = time.monotonic() - self._since
        if seconds < _PROGRESS_INTERVAL_S and not (last and self._windows):
            return
        held = f" held_back_by={held_back_by!r}" if held_back_by else ""
        log.info(
            "landed windows=%d transactions=%d changes=%d changes_per_s=%.0f max_lag_ms=%.0f hi=%d"
            " total_transactions=%d%s",
            self._windows,
            self._transactions,
            self._changes,
            self._changes / max(seconds, 1e-3),
            self._lag_ms,
            summary.hi,
            summary.transactions,
            held,
        )
        self._begin()


def ms_since(began: float) -> float:
    """Return the milliseconds since a time on the clock of time.perf_counter."""
    return (time.perf_counter() - began) * 1000


class LandingCounters:
    """The counters of one landing process; see `sluice.relay.measures`."""

    def __init__(
        self, relay: RelayLog, upstream_skew_ms: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Begin to count; `upstream_skew_ms` as for `CounterRecorder`."""
        self._recorder = CounterRecorder(
            CounterStore(relay), LAND, upstream_skew_ms=upstream_skew_ms
        )

    def set_position(self, landed_ts: int) -> None:
        """Record that everything through a TSO is landed."""
        self._recorder.at(landed_ts)

    def landed(self, window: LandedWindow) -> None:
        """Count a window."""
        counts = {
            "windows": 1,
            "transactions": window.transactions,
            "changes": window.changes,
            "ddls": window.ddls,
            "bytes": window.bytes,
        }
        took_ms = sum(window.stages_ms.get(stage, 0.0) for stage in ("job", "resolve", "commit"))
        self._recorder.count(
            counts, {"window": took_ms / 1000, "reach": max(0.0, window.lag_ms) / 1000}
        )
        self._recorder.observe_lag(max(0.0, window.lag_ms))
        self._recorder.at(window.hi)

    def without_binlog(self, jobs: int) -> None:
        """Count DDL jobs whose rows come without a binlog."""
        self._recorder.count({"without_binlog": jobs})

    def record_failure(self, error: Exception) -> None:
        """Count an error, whether it is retried or not."""
        self._recorder.count({"retries": 1, f"error.{type(error).__name__}": 1})

    def close(self) -> None:
        """Write the remaining counts. Never raises."""
        self._recorder.close()
