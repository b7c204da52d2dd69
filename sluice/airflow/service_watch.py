"""Watch the service `sluice replicate` for the DAG `replicate`: green only while it gets on.

Runs on the pipeline's side, as the other calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from sluice.errors import SluiceError, ours
from sluice.etl.operate.overview import known_checkpoint
from sluice.etl.settings import Settings
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.relay import RelayLog
from sluice.relay.service_lease import LEASE_TIMEOUT_S, ServiceLease

__all__ = ["ReplicationStalledError", "watch"]

log = logging.getLogger("sluice")

_POLL_INTERVAL_S = 5.0
_ABSENT_TIMEOUT_S = 60.0
"""A standby takes over within half of it."""
_STALL_TIMEOUT_S = 900.0
"""A batch or a DDL statement may take minutes."""
_ANSWER_TIMEOUT_S = 10.0


class ReplicationStalledError(SluiceError):
    """The service doesn't replicate. Each one has a hint of its own."""

    hint = "look at the log of `sluice replicate`"


def watch(pipeline: NamedPipeline, left_s: Callable[[], float]) -> dict[str, Any]:
    """Watch until no time is left; return who replicates, and how far the downstream is (TSO).

    Raises ReplicationStalledError if nobody replicates, an operator has to act, or the downstream
    stands still while there is something to apply.
    """
    watched = _Watched(pipeline)
    while True:
        try:
            found = watched.look()
        except Exception as error:
            reason = ours(error)
            if not reason.transient:
                raise
            log.warning("the service can't be looked at: %s", reason)
            found = {}
        if left_s() <= 0:
            return found
        time.sleep(min(_POLL_INTERVAL_S, max(0.0, left_s())))


class _Watched:
    """What was seen of the service so far."""

    def __init__(self, pipeline: NamedPipeline) -> None:
        self._pipeline = pipeline
        self._lease: ServiceLease | None = None
        self._seen_at = self._moved_at = time.monotonic()
        self._at_ts = 0

    def look(self) -> dict[str, Any]:
        """Return who replicates and how far. Raises ReplicationStalledError, and what passes."""
        settings = self._pipeline.settings
        relay = settings.open_relay()
        self._check_failures(relay)
        who = self._holder(relay)
        self._check_progress(settings, relay)
        return {"holder": who, "checkpoint": self._at_ts}

    def _check_failures(self, relay: RelayLog) -> None:
        for failure in relay.failures.list():
            if failure.what in ("land", "apply") and not relay.failures.is_answered(failure):
                raise ReplicationStalledError(
                    f"{failure.what} has stopped: {failure.message}",
                    hint=f"{failure.hint}; then `sluice resume`, and unpause this DAG",
                )

    def _holder(self, relay: RelayLog) -> str:
        self._lease = self._lease or ServiceLease(relay.place)
        entry, now = self._lease.entry(), time.monotonic()
        if entry.holder and self._lease.unchanged_s(entry) < LEASE_TIMEOUT_S:
            self._seen_at = now
        elif now - self._seen_at > _ABSENT_TIMEOUT_S:
            raise ReplicationStalledError(
                f"no process replicates since {now - self._seen_at:.0f} s",
                hint="start `sluice replicate`, better on two hosts, and unpause this DAG",
            )
        return f"process {entry.pid} on {entry.host}" if entry.holder else ""

    def _check_progress(self, settings: Settings, relay: RelayLog) -> None:
        at_ts = known_checkpoint(settings, _ANSWER_TIMEOUT_S).at_ts or 0
        last, now = relay.last(), time.monotonic()
        is_behind = last is not None and last.hi > at_ts and not relay.control().apply_paused
        if at_ts != self._at_ts or not is_behind:
            self._at_ts, self._moved_at = at_ts, now
        elif now - self._moved_at > _STALL_TIMEOUT_S:
            raise ReplicationStalledError(
                f"the downstream stands still at {at_ts} for {now - self._moved_at:.0f} s, and"
                " more has landed",
                hint="`sluice status` shows what it waits for; then unpause this DAG",
            )
