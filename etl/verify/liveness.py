"""Record whether continuous verification advances, for monitoring: on changes and every minute."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from sluice.errors import SluiceError
from sluice.relay.verification_log import Verifications, VerifierStatus

__all__ = ["VerifierLiveness"]

log = logging.getLogger("sluice.verify")

_NOTE_INTERVAL_MS = 60_000


class VerifierLiveness:
    """Record each pass of the verifier.

    A failed write is left for the next time: nothing depends on it.
    """

    def __init__(self, notes: Verifications, now_ms: Callable[[], int]) -> None:
        self._notes = notes
        self._now_ms = now_ms
        self._noted = self._look = notes.look()
        self._rows_before = self._look.rows

    def mark_progress(self, rows: int = 0) -> None:
        """Record progress: nothing was to be compared, or `rows` were, by this process so far."""
        self._write(
            replace(
                self._look,
                stalled_ms=0,
                rows=max(self._look.rows, self._rows_before + rows),
                why="",
            )
        )

    def failed(self, why: str) -> None:
        """Note that there was something to compare, and nothing could be."""
        self._write(
            replace(self._look, stalled_ms=self._look.stalled_ms or self._now_ms(), why=why)
        )

    def _write(self, look: VerifierStatus) -> None:
        self._look = replace(look, looked_ms=self._now_ms())
        stands = bool(self._look.stalled_ms) == bool(self._noted.stalled_ms)
        if stands and 0 <= self._look.looked_ms - self._noted.looked_ms < _NOTE_INTERVAL_MS:
            return
        with contextlib.suppress(SluiceError, OSError):
            self._notes.save_status(self._look)
            self._noted = self._look
