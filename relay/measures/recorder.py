"""Count in a process, and add it to the relay log's measures in the background.

So it never delays a commit.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sluice.relay.measures.counters import HOUR_MS, CounterDocument, Durations, TableCount
from sluice.relay.measures.measures import CounterStore
from sluice.relay.measures.points import LagStep
from sluice.tidb import tso

__all__ = ["CounterRecorder"]

log = logging.getLogger("sluice")

_FLUSH_INTERVAL_S = 10.0
_MANY_TABLES_COUNT = 500
_MANY_TABLES_FLUSH_INTERVAL_S = 60.0
_CLOSE_TIMEOUT_S = 10.0


@dataclass(slots=True)
class _PendingTable:
    """A table's changes since the last addition; each commit adds to all of its tables."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    commit_ts: int = 0
    at_ms: int = 0
    hours: dict[int, int] = field(default_factory=dict)

    def total(self) -> TableCount:
        hours = tuple(sorted(self.hours.items()))
        return TableCount(
            self.inserts, self.updates, self.deletes, self.commit_ts, self.at_ms, hours
        )


@dataclass(slots=True)
class _PendingCounts:
    """The counts since the last addition."""

    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    tables: dict[str, _PendingTable] = field(default_factory=dict)
    lag_ms: float | None = None
    age_ms: float | None = None


class CounterRecorder:
    """Counts for a source; threads may share it.

    Counts that can't be written are kept and tried again. The failure is logged once and stops
    nothing.
    """

    def __init__(
        self,
        measures: CounterStore,
        source: str,
        every_s: float = _FLUSH_INTERVAL_S,
        upstream_skew_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Begin to count; `upstream_skew_ms`: how far TiDB's clock is ahead of this machine's.

        It is called in the background, so it may ask TiDB's PD.
        """
        self._measures = measures
        self._source = source
        self._every_s = every_s
        self._upstream_skew_ms = upstream_skew_ms
        self.skew_ms = 0.0
        """TiDB's clock minus this machine's, as of some seconds ago; reading it never waits."""
        self._token = secrets.token_hex(6)
        self._lock = threading.Lock()
        self._waiting = _PendingCounts()
        self._at_ts = 0
        self._since = time.monotonic()
        self._unsent: CounterDocument | None = None
        self._tables: dict[str, TableCount] = {}
        self._unsent_tables: dict[str, TableCount] = {}
        self._number = self._tables_number = 1
        self._tables_due = 0.0
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"measures-{source}", daemon=True)
        self._thread.start()

    def at(self, ts: int) -> None:
        """Record the TSO that this source has reached."""
        with self._lock:
            self._at_ts = ts

    def count(self, counts: Mapping[str, int], seconds: Mapping[str, float] | None = None) -> None:
        """Add to each counter, and add one duration, in seconds, to each of `seconds`."""
        with self._lock:
            for name, number in counts.items():
                self._waiting.counts[name] = self._waiting.counts.get(name, 0) + number
            for name, took in (seconds or {}).items():
                self._waiting.seconds.setdefault(name, []).append(took)

    def observe_lag(self, lag_ms: float) -> None:
        """Record the present lag in ms."""
        with self._lock:
            self._waiting.lag_ms = max(lag_ms, self._waiting.lag_ms or 0.0)

    def observe_age(self, age_ms: float) -> None:
        """Record how old what was done last was by this machine's clock, in ms."""
        with self._lock:
            self._waiting.age_ms = max(age_ms, self._waiting.age_ms or age_ms)

    def changed(self, tables: Mapping[str, tuple[int, int, int]], commit_ts: int) -> None:
        """Add (inserts, updates, deletes) by table, up to a commit timestamp."""
        now = _now_ms()
        hour = now // HOUR_MS
        with self._lock:
            waiting = self._waiting.tables
            for name, (inserts, updates, deletes) in tables.items():
                table = waiting.get(name)
                if table is None:
                    table = waiting[name] = _PendingTable()
                table.inserts += inserts
                table.updates += updates
                table.deletes += deletes
                table.commit_ts = max(table.commit_ts, commit_ts)
                table.at_ms = now
                table.hours[hour] = table.hours.get(hour, 0) + inserts + updates + deletes

    def close(self) -> None:
        """Add the rest, if that takes no longer than ten seconds. Never raises."""
        self._stop.set()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning(
                "what %s counted last may be missing from the measures in the relay log: it wasn't"
                " added within %g s",
                self._source,
                _CLOSE_TIMEOUT_S,
            )

    # In the thread

    def _run(self) -> None:
        self.skew_ms = self._upstream_skew_ms()
        while not self._stop.wait(self._every_s):
            self._try()
        for _ in range(2):  # what was tried before, and what has come since
            self._tables_due = 0.0
            self._try()

    def _try(self) -> None:
        self._collect()
        try:
            self._send()
            self._failed = False
        except Exception as error:  # whatever it is, replication goes on
            if not self._failed:
                log.warning(
                    "what %s counts can't be added to the measures in the relay log, which is tried"
                    " again: %s",
                    self._source,
                    error,
                )
            self._failed = True

    def _collect(self) -> None:
        """Make what was counted ready to be sent.

        What was sent, and perhaps not written, stays as it is.
        """
        with self._lock:
            if self._unsent is not None:
                return
            waiting, self._waiting = self._waiting, _PendingCounts()
            at_ts = self._at_ts
        for name, table in waiting.tables.items():
            known, count = self._tables.get(name), table.total()
            self._tables[name] = count if known is None else known + count
        if not at_ts and not waiting.counts:
            return
        now, since = time.monotonic(), self._since
        self._since = now
        if waiting.lag_ms is None and (waiting.age_ms is not None or at_ts):
            age_ms = waiting.age_ms
            if age_ms is None:
                age_ms = _now_ms() - tso.physical_ms(at_ts)
            self.skew_ms = self._upstream_skew_ms()
            waiting.lag_ms = max(0.0, age_ms + self.skew_ms)
        self._unsent = _counter_document(waiting, at_ts, max(1, round(1000 * (now - since))))

    def _send(self) -> None:
        if self._unsent is not None:
            self._measures.note(self._source, self._unsent, self._token, self._number)
            self._number += 1
            self._unsent = None
        now = time.monotonic()
        if not self._unsent_tables and now >= self._tables_due:
            self._unsent_tables, self._tables = self._tables, {}
        if self._unsent_tables:
            tables = self._unsent_tables
            self._measures.add_tables(self._source, tables, self._token, self._tables_number)
            self._tables_number += 1
            self._unsent_tables = {}
            self._tables_due = now + (
                _MANY_TABLES_FLUSH_INTERVAL_S if len(tables) > _MANY_TABLES_COUNT else 0.0
            )


def _counter_document(waiting: _PendingCounts, at_ts: int, span_ms: int) -> CounterDocument:
    now = _now_ms()
    durations = {name: Durations.from_seconds(seconds) for name, seconds in waiting.seconds.items()}
    found = CounterDocument(waiting.counts, durations, at_ts, since_ms=now - span_ms, noted_ms=now)
    if waiting.lag_ms is None:
        return found
    counts = waiting.counts
    step = LagStep(
        now,
        span_ms,
        round(waiting.lag_ms, 1),
        counts.get("changes", 0),
        counts.get("transactions", 0),
        counts.get("windows", 0),
        counts.get("retries", 0),
        counts.get("ddls", 0),
    )
    return replace(found, hour=(step,))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
