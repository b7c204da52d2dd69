"""What operators want of landing, looked up in the relay log now and then."""

from __future__ import annotations

import logging
import time

from relay import SKIP, RelayLog

log = logging.getLogger("sluice.land")

LOOK_EVERY_S = 0.5


class Orders:
    """The order to wait, and the decisions to leave transactions out."""

    def __init__(self, relay: RelayLog, ignored_ts: frozenset[int]) -> None:
        """`ignored_ts`: commit timestamps that the settings leave out."""
        self._relay = relay
        self._ignored_ts = ignored_ts
        self._paused = False
        self._looked = 0.0
        self._skipped: frozenset[int] = frozenset()
        self._skips_due = 0.0
        self._appointments_due = 0.0

    def is_paused(self) -> bool:
        """Whether landing is to wait. Raises relay errors."""
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            paused = self._relay.control().land_paused
            if paused != self._paused:
                log.info("landing is %s", "paused, as operators want it" if paused else "resumed")
            self._paused = paused
        return self._paused

    def window_is_due(self, after_ts: int, now_ts: int) -> bool:
        """Whether somebody waits for the checkpoint to come to a timestamp behind `after_ts` and through `now_ts`
        (TSOs), PD's clock. Raises relay errors.
        """
        now = time.monotonic()
        if now < self._appointments_due:
            return False
        self._appointments_due = now + LOOK_EVERY_S
        return self._relay.appointments.due(after_ts, now_ts)

    def skips(self, after_ts: int) -> frozenset[int]:
        """Commit timestamps after a TSO of transactions that don't go downstream anyway. Raises relay errors."""
        now = time.monotonic()
        if now >= self._skips_due:
            self._skips_due = now + LOOK_EVERY_S
            decided = self._relay.decisions.list(after_ts)
            self._skipped = self._ignored_ts | {decision.commit_ts for decision in decided if decision.action == SKIP}
        return self._skipped
