"""Count landed windows and failures for the relay log's measures."""

from __future__ import annotations

from sluice.etl.landing._report import LandedWindow
from sluice.relay import RelayLog
from sluice.relay.measures import LAND, CounterRecorder, CounterStore

__all__ = ["LandingCounters"]


class LandingCounters:
    """The counters of one landing process; see `sluice.relay.measures`."""

    def __init__(self, relay: RelayLog) -> None:
        self._recorder = CounterRecorder(CounterStore(relay), LAND)

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
