"""Record in the relay log how far this pipeline has applied, for `sluice.etl.history.retain`.

Runs in a thread of its own every few minutes. Errors are logged and retried; they never stop
applying.
"""

from __future__ import annotations

import logging
import threading
import time

from sluice.relay import RelayError, RelayLog
from sluice.relay.consumers import Consumers, consumer_name

log = logging.getLogger("sluice.apply")

_REPORT_INTERVAL_S = 300.0
_CLOSE_TIMEOUT_S = 10.0


class ConsumerPosition:
    """Record the position of one pipeline.

    Call `set_position` after each checkpoint, `close` at the end.
    """

    def __init__(self, relay: RelayLog, downstream: str) -> None:
        """Record the position under the downstream's name, `downstream`."""
        self._consumers = Consumers(relay)
        self._what = downstream
        self._name = consumer_name(downstream)
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def set_position(self, checkpoint_ts: int) -> None:
        """Note that the downstream is complete through `checkpoint_ts`."""
        now = time.monotonic()
        if now < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = now + _REPORT_INTERVAL_S
        self._thread = threading.Thread(
            target=self._run, args=(checkpoint_ts,), name="relay-upkeep", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Wait for a write in progress, `_CLOSE_TIMEOUT_S` at most."""
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self, checkpoint_ts: int) -> None:
        try:
            self._consumers.note(self._name, checkpoint_ts, self._what)
        except (RelayError, OSError) as error:
            log.warning("consumer position could not be recorded; will retry: %s", error)
