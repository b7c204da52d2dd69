"""Estimate PD's clock, and reject timestamps that PD can't have issued yet.

A timestamp from the future does permanent damage: max_commit_ts follows it, and readers that passed
it never read later commits below it. So no timestamp is accepted that is further ahead of PD's
clock than two machines' clocks may differ.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sluice.tidb import tso

_log = logging.getLogger(__name__)

MAX_AHEAD_MS = 10_000
_MAX_AHEAD = tso.span(MAX_AHEAD_MS)
"""Largest lead over the estimate of PD's clock for which PD isn't asked."""
_REFRESH_INTERVAL_S = 2.0
_PD_WAIT_TIMEOUT_S = 0.05
_CALM_S = 0.02
_REPORT_INTERVAL_S = 30.0


class PdClock:
    """Estimate timestamps: the last TSO seen plus the time since.

    `tso()` queries PD and may raise.
    """

    def __init__(self, tso: Callable[[], int]) -> None:
        self._tso = tso
        self._lock = threading.Lock()
        self._last = (0, 0.0)  # the highest TSO seen, and its monotonic time
        self.first = 0
        """The first TSO seen; 0 before."""
        self._failed_at = -_REFRESH_INTERVAL_S

    def fresh(self) -> int:
        """Return a TSO from PD; raises the client's errors."""
        try:
            ts = self._tso()
        except Exception:
            self._failed_at = time.monotonic()
            raise
        with self._lock:
            self.first = self.first or ts
            if ts > self._last[0]:
                self._last = ts, time.monotonic()
            self._failed_at = -_REFRESH_INTERVAL_S
        return ts

    def estimated_ts(self) -> int:
        """Return the estimate, without querying PD; 0 before the first `fresh`."""
        seen, at = self._last
        return seen + tso.span(int((time.monotonic() - at) * 1000)) if seen else 0

    @property
    def highest_seen(self) -> int:
        """Return the highest TSO seen."""
        return self._last[0]

    @property
    def pd_answers(self) -> bool:
        """Return False if the last query failed just now."""
        return time.monotonic() - self._failed_at >= _REFRESH_INTERVAL_S


class FutureTsLimit:
    """Detect timestamps from the future.

    A thread, from `start` to `stop`, keeps `clock` current.
    """

    def __init__(self, clock: PdClock) -> None:
        self._clock = clock
        self.limit = 0
        """Timestamps up to this one were issued, or nearly; those above need `exceeded`."""
        self._ask, self._stop = threading.Event(), threading.Event()
        self._answer = threading.Condition()
        self._questions = self._answered = 0  # queries started, and the last one answered
        self._asked_at = 0.0  # 0: no query is running
        self._refused_at = self._reported_at = -_REPORT_INTERVAL_S
        self._thread = threading.Thread(target=self._run, name="pump-clock", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a running query ends by its own timeout."""
        self._stop.set()
        self._ask.set()

    @property
    def passed_ts(self) -> int:
        """Return a timestamp that PD has surely issued; 0 before the first."""
        return self._clock.highest_seen

    def is_since_start(self, ts: int) -> bool:
        """Return whether PD may have issued `ts` after the clock was created.

        All that an earlier process of this pump accepted was committed before that.
        """
        return 0 < self._clock.first <= ts

    def exceeded(self, ts: int) -> bool:
        """Return whether `ts` is too far ahead.

        PD is queried, because its clock may have jumped, or gone on while this machine paused. But
        callers must not wait: an answer slower than `_PD_WAIT_TIMEOUT_S` counts at the next
        attempt. While PD is unreachable, this machine's clock may also vouch for a timestamp, so
        that no client is rejected for that.
        """
        if self.is_known(ts):
            return False
        self._refresh()
        if self.is_known(ts) or (
            not self._clock.pd_answers and ts <= tso.wall_clock() + _MAX_AHEAD
        ):
            return False
        now = self._refused_at = time.monotonic()
        if now - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = now
            _log.error("a client's timestamp is rejected: %s", self.describe(ts))
        return True

    def mark_exceeded(self, ts: int) -> bool:
        """Return whether a reader's timestamp, claimed to be PD's, is exactly ahead of PD.

        Queries PD, which may take its timeout. Only if PD is unreachable do clocks decide.
        """
        if ts <= self._clock.highest_seen:
            return False
        if self._clock.pd_answers:
            try:
                return ts > self._clock.fresh()
            except Exception as error:
                _log.warning(
                    "can't query PD for a reader's timestamp, using local clocks: %s", error
                )
        return ts > max(self._clock.estimated_ts(), tso.wall_clock()) + _MAX_AHEAD

    def describe(self, ts: int) -> str:
        """Return the message for a rejected timestamp."""
        ahead = tso.ms_between(self._clock.estimated_ts(), ts) / 1000
        return (
            f"timestamp {ts} lies {ahead:.1f} s ahead of PD's clock, so PD can't have given it, and"
            " taking it would hide commits below it; do the client and this pump ask the same PD?"
        )

    def is_known(self, ts: int) -> bool:
        """Return whether PD has issued `ts`, or nearly, by the estimate alone."""
        self.limit = max(self.limit, self._clock.estimated_ts() + _MAX_AHEAD)
        return ts <= self.limit

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._refused_at < _CALM_S or (
            self._asked_at and now - self._asked_at > _PD_WAIT_TIMEOUT_S
        ):
            self._ask.set()
            return  # a client that sends bad timestamps, or a PD that hangs, must not delay others
        with self._answer:
            # a running query may have been answered before the clock jumped
            wanted = self._questions + 1
            self._ask.set()
            self._answer.wait_for(lambda: self._answered >= wanted, _PD_WAIT_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._ask.wait(_REFRESH_INTERVAL_S)
            self._ask.clear()
            with self._answer:
                self._questions += 1
            self._asked_at = time.monotonic()
            try:
                self._clock.fresh()
            except Exception as error:
                _log.debug("PD issues no timestamp: %s", error)
            self._asked_at = 0.0
            with self._answer:
                self._answered = self._questions
                self._answer.notify_all()
