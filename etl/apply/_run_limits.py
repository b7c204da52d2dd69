"""End a run: by time, by an order, or at a commit timestamp."""

from __future__ import annotations

import threading
import time

from sluice.relay import RelayLog, WindowRecord

_POLL_INTERVAL_S = 0.02
_REMOTE_POLL_INTERVAL_S = 0.25  # in an object store, which charges for each request


class RunLimits:
    """Limits at which a run ends."""

    def __init__(
        self, run_seconds: float | None, stop: threading.Event, until_ts: int | None
    ) -> None:
        self._end = None if run_seconds is None else time.monotonic() + run_seconds
        self.stop = stop
        self.until_ts = until_ts

    def is_over(self, checkpoint_ts: int = 0) -> bool:
        """Return whether the run ends with the checkpoint at `checkpoint_ts`."""
        reached = self.until_ts is not None and checkpoint_ts >= self.until_ts
        return (
            self.stop.is_set()
            or reached
            or (self._end is not None and time.monotonic() >= self._end)
        )


def wait_for_first_window(relay: RelayLog, limits: RunLimits) -> WindowRecord | None:
    """Return the log's first window as soon as there is one; None if the run ends before."""
    while not limits.is_over():
        window = relay.first()
        if window is not None:
            return window
        limits.stop.wait(_REMOTE_POLL_INTERVAL_S if relay.storage.is_remote else _POLL_INTERVAL_S)
    return None
