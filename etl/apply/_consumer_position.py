"""The relay log's upkeep beside applying: says how far this pipeline is, so that `sluice.etl.history.retain` knows what
it is past.

Runs in a thread of its own, now and then; trouble is logged, tried again, and never stops applying.
"""

from __future__ import annotations

import logging
import threading
import time

from sluice.relay import RelayError, RelayLog
from sluice.relay.retention import Consumers, consumer_name

log = logging.getLogger("sluice.apply")

_REPORT_INTERVAL_S = 300.0
_CLOSE_TIMEOUT_S = 10.0


class ConsumerPosition:
    """`at` after each checkpoint; `close` at the end."""

    def __init__(self, relay: RelayLog, downstream: str) -> None:
        """`downstream`: where it is applied to, in words."""
        self._consumers = Consumers(relay)
        self._what = downstream
        self._name = consumer_name(downstream)
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def at(self, checkpoint_ts: int) -> None:
        """The downstream is complete through here."""
        now = time.monotonic()
        if now < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = now + _REPORT_INTERVAL_S
        self._thread = threading.Thread(target=self._run, args=(checkpoint_ts,), name="relay-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End what is under way."""
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self, checkpoint_ts: int) -> None:
        try:
            self._consumers.note(self._name, checkpoint_ts, self._what)
        except (RelayError, OSError) as error:
            log.warning("the relay log's upkeep failed, and is tried again later: %s", error)
