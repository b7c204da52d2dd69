"""Read operators' control of landing from the relay log at intervals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sluice.relay import SKIP, RelayLog

log = logging.getLogger("sluice.land")

CHECK_INTERVAL_S = 0.5
_PIPELINES_CHECK_INTERVAL_S = 10.0
_REMOTE_CHECK_INTERVAL_S = 2.0  # in an object store, where each read is charged for


class LandingControl:
    """The operators' control: whether landing is paused, and which transactions are skipped."""

    def __init__(self, relay: RelayLog, ignored_ts: frozenset[int]) -> None:
        """Create the landing control.

        `ignored_ts`: commit timestamps that the settings exclude.
        """
        self._relay = relay
        self._every_s = _REMOTE_CHECK_INTERVAL_S if relay.storage.is_remote else CHECK_INTERVAL_S
        self._all = [relay]
        self._all_due = 0.0
        self._ignored_ts = ignored_ts
        self._paused = False
        self._checked_at = 0.0
        self._skipped: frozenset[int] = frozenset()
        self._skips_due = 0.0
        self._chunks_due = 0.0

    def is_paused(self) -> bool:
        """Return whether landing is to wait. Raises relay errors."""
        now = time.monotonic()
        if now - self._checked_at >= self._every_s:
            self._checked_at = now
            paused = self._relay.control().land_paused
            if paused != self._paused:
                log.info("landing is %s", "paused by an operator" if paused else "resumed")
            self._paused = paused
        return self._paused

    def needs_window_now(self, after_ts: int, now_ts: int) -> bool:
        """Return whether an aligned chunk waits for a checkpoint in (`after_ts`, `now_ts`] (TSOs).

        `now_ts`: PD's clock. Raises relay errors.
        """
        now = time.monotonic()
        if now < self._chunks_due:
            return False
        self._chunks_due = now + self._every_s
        return any(each.aligned_chunks.due(after_ts, now_ts) for each in self._pipelines())

    def skips(self, after_ts: int) -> frozenset[int]:
        """Return the commit timestamps after a TSO that every pipeline on this relay log skips.

        Raises relay errors.
        """
        now = time.monotonic()
        if now >= self._skips_due:
            self._skips_due = now + self._every_s
            own, *others = [_skip_overrides(each, after_ts) for each in self._pipelines()]
            self._skipped = (own | self._ignored_ts).intersection(*others)
        return self._skipped

    @property
    def is_shared(self) -> bool:
        """Return whether other pipelines read the relay log, too. Raises OSError."""
        return len(self._pipelines()) > 1

    def _pipelines(self) -> list[RelayLog]:
        """Return the relay log as each pipeline sees it, this one first."""
        now = time.monotonic()
        if now >= self._all_due:
            self._all_due = now + max(_PIPELINES_CHECK_INTERVAL_S, 15 * self._every_s)
            there = {each.pipeline: each for each in self._all}
            self._all = [there.get(each.pipeline, each) for each in self._relay.all_pipelines()]
        return self._all


def _skip_overrides(relay: RelayLog, after_ts: int) -> frozenset[int]:
    return frozenset(
        each.commit_ts for each in relay.overrides.list(after_ts) if each.action == SKIP
    )


Stop = threading.Event | Callable[[], bool]


class RunLimits:
    """The limits of a run: seconds, a TSO, and a stop signal."""

    def __init__(self, run_seconds: float | None, stop: Stop | None, until_ts: int | None) -> None:
        """Set the limits; None: without that one. `until_ts` is a TSO."""
        self._end = None if run_seconds is None else time.monotonic() + run_seconds
        self._stop = stop.is_set if isinstance(stop, threading.Event) else stop or (lambda: False)
        self._until_ts = until_ts

    def is_reached(self, landed_ts: int | None) -> bool:
        """Return whether everything through `until_ts` is landed.

        `landed_ts` (TSO): None before it is known.
        """
        return self._until_ts is not None and landed_ts is not None and landed_ts >= self._until_ts

    def is_over(self, landed_ts: int | None) -> bool:
        """Return whether the run ends here, see `is_reached`."""
        return (
            self.is_reached(landed_ts)
            or self._stop()
            or (self._end is not None and time.monotonic() >= self._end)
        )

    def wait(self, seconds: float, landed_ts: int | None) -> bool:
        """Sleep, at most until the run ends; return whether it has ended."""
        until = time.monotonic() + seconds
        while not (over := self.is_over(landed_ts)) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return over
