"""PD's clock as the pump knows it, and which timestamps can't have come from PD yet.

A timestamp from the future lies for good: max_commit_ts follows it, and whatever commits below it later on is never
read by anybody who is past it. So nothing is taken that is further ahead of PD's clock than two machines may differ.
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
"""A record's timestamp may be this far ahead of what is known of PD's clock without asking."""
_REFRESH_INTERVAL_S = 2.0
_PD_WAIT_TIMEOUT_S = 0.05
_CALM_S = 0.02
_REPORT_INTERVAL_S = 30.0


class PdClock:
    """Timestamps that need not be exact: the last TSO seen plus the time since. `tso()` asks PD and may raise."""

    def __init__(self, tso: Callable[[], int]) -> None:
        self._tso = tso
        self._lock = threading.Lock()
        self._last = (0, 0.0)  # the highest TSO seen, and when
        self.first = 0
        """The first TSO that was seen; 0 before."""
        self._failed_at = -_REFRESH_INTERVAL_S

    def fresh(self) -> int:
        """A TSO from PD; raises what the client raises."""
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
        """Without asking PD; 0 before the first `fresh`."""
        seen, at = self._last
        return seen + tso.span(int((time.monotonic() - at) * 1000)) if seen else 0

    @property
    def seen(self) -> int:
        """The highest TSO seen."""
        return self._last[0]

    @property
    def pd_answers(self) -> bool:
        """False if the last question failed and that was just now."""
        return time.monotonic() - self._failed_at >= _REFRESH_INTERVAL_S


class FutureTsLimit:
    """Says which timestamps lie in the future. Keeps `clock` up to date in a thread of its own, between `start` and
    `stop`.
    """

    def __init__(self, clock: PdClock) -> None:
        self._clock = clock
        self.limit = 0
        """Timestamps up to here were issued, or nearly; about those above `exceeded` has to be asked."""
        self._ask, self._stop = threading.Event(), threading.Event()
        self._answer = threading.Condition()
        self._questions = self._answered = 0  # how many were begun, and which was the last to be answered
        self._asked_at = 0.0  # 0: no question is under way
        self._refused_at = self._reported_at = -_REPORT_INTERVAL_S
        self._thread = threading.Thread(target=self._run, name="pump-clock", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a question under way ends by its own time-out."""
        self._stop.set()
        self._ask.set()

    @property
    def passed_ts(self) -> int:
        """A timestamp that PD has surely given; 0 before the first."""
        return self._clock.seen

    def is_since_start(self, ts: int) -> bool:
        """Whether PD gave `ts`, or could have, after the clock was made: whatever a former process of this pump's took
        was committed before.
        """
        return 0 < self._clock.first <= ts

    def exceeded(self, ts: int) -> bool:
        """Whether `ts` is too far ahead.

        PD's clock may have jumped, or have gone on while this machine paused, so PD is asked. But nothing may wait
        here: an answer that takes longer than _PATIENCE_S counts at the next try. While PD doesn't answer at all, this
        machine's own clock may vouch for a timestamp too, for nobody shall be refused because PD is away.
        """
        if self.is_known(ts):
            return False
        self._refresh()
        if self.is_known(ts) or (not self._clock.pd_answers and ts <= tso.wall_clock() + _MAX_AHEAD):
            return False
        now = self._refused_at = time.monotonic()
        if now - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = now
            _log.error("a client is refused: %s", self.describe(ts))
        return True

    def mark_exceeded(self, ts: int) -> bool:
        """As `exceeded` for a timestamp that a reader claims to have from PD, exactly: PD is asked whether it has come
        that far. May take as long as PD's time-out; only if PD doesn't answer are clocks all there is.
        """
        if ts <= self._clock.seen:
            return False
        if self._clock.pd_answers:
            try:
                return ts > self._clock.fresh()
            except Exception as error:
                _log.warning("PD can't be asked about a reader's timestamp, clocks have to do: %s", error)
        return ts > max(self._clock.estimated_ts(), tso.wall_clock()) + _MAX_AHEAD

    def describe(self, ts: int) -> str:
        """The words about a timestamp that is refused."""
        ahead = tso.ms_between(self._clock.estimated_ts(), ts) / 1000
        return (
            f"timestamp {ts} lies {ahead:.1f} s ahead of PD's clock, so PD can't have given it, and taking it would"
            " hide commits below it; do the client and this pump ask the same PD?"
        )

    def is_known(self, ts: int) -> bool:
        """Whether PD has given `ts`, or nearly, as far as the clock tells; PD isn't asked."""
        self.limit = max(self.limit, self._clock.estimated_ts() + _MAX_AHEAD)
        return ts <= self.limit

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._refused_at < _CALM_S or (self._asked_at and now - self._asked_at > _PD_WAIT_TIMEOUT_S):
            self._ask.set()
            return  # who sends nonsense all the time, or asks while PD hangs, doesn't hold up the others
        with self._answer:
            wanted = self._questions + 1  # one that is under way may have been answered before the clock jumped
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
                _log.debug("PD gives no timestamp: %s", error)
            self._asked_at = 0.0
            with self._answer:
                self._answered = self._questions
                self._answer.notify_all()
