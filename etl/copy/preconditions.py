"""Check what a copy needs from others while it runs: the pumps' binlogs and TiDB's GC.

The pumps keep what is committed since its position, TiDB's GC what it reads. Both may be lost (by
an operator, by a time-out while no process ran), and hours of copying be of no use then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sluice.etl.copy.errors import CopyError
from sluice.etl.landing.planner import (
    CommitsPurgedError,
    PumpUnavailableError,
    UpstreamBehindError,
    WindowPlanner,
)

_CHECK_INTERVAL_S = 60.0


class PreconditionMonitor:
    """Call `look`, which raises if the copy is of no use any more."""

    def __init__(
        self, look: Callable[[], None] = lambda: None, every_s: float = _CHECK_INTERVAL_S
    ) -> None:
        self._look = look
        self._every_s = every_s
        self._next_s = time.monotonic() + every_s

    def now_and_then(self) -> None:
        """Look if it is time to. Raises what `look` raises."""
        if time.monotonic() >= self._next_s:
            self.now()

    def now(self) -> None:
        """Look. Raises what `look` raises."""
        self._next_s = time.monotonic() + self._every_s
        self._look()


def check_binlogs_retained(planner: WindowPlanner, ts: int) -> None:
    """Raise CopyError if a pump has removed what was committed since `ts` (TSO).

    Transient if it can't be known.
    """
    try:
        planner.plan(ts, empty_now=True)
    except CommitsPurgedError as error:
        raise CopyError(
            f"the pumps have no longer what was committed since the source's position {ts}:"
            f" {error}. Start over: dump again, or copy from TiDB as it is then; pumps keep what is"
            " needed from the moment on at which the copy begins. Or, while TiKV has its history,"
            f" start another pump, with [capture] start-ts = {ts}: `sluice pump -capture`"
        ) from error
    except (PumpUnavailableError, UpstreamBehindError) as error:
        raise CopyError(
            f"whether the pumps have what was committed since {ts} can't be known: {error}",
            transient=True,
        ) from error
