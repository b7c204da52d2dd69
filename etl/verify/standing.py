"""Whether continuous verification gets on, for those who watch it: noted when that changes, and every minute."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from errors import SluiceError
from relay.verified import Verifications, VerifyingLook

__all__ = ["Standing"]

log = logging.getLogger("sluice.verify")

_NOTE_MS = 60_000


class Standing:
    """Told of each pass. What can't be written down is left for the next time: nothing rests on it."""

    def __init__(self, notes: Verifications, now_ms: Callable[[], int]) -> None:
        self._notes = notes
        self._now_ms = now_ms
        self._noted = self._look = notes.look()
        self._rows_before = self._look.rows

    def went_on(self, rows: int = 0) -> None:
        """There was nothing to compare, or rows were compared: so many by this process until now."""
        self._tell(replace(self._look, stalled_ms=0, rows=max(self._look.rows, self._rows_before + rows), why=""))

    def failed(self, why: str) -> None:
        """There was something to compare, and nothing could be."""
        self._tell(replace(self._look, stalled_ms=self._look.stalled_ms or self._now_ms(), why=why))

    def _tell(self, look: VerifyingLook) -> None:
        self._look = replace(look, looked_ms=self._now_ms())
        stands = bool(self._look.stalled_ms) == bool(self._noted.stalled_ms)
        if stands and 0 <= self._look.looked_ms - self._noted.looked_ms < _NOTE_MS:
            return
        with contextlib.suppress(SluiceError, OSError):
            self._notes.keep_look(self._look)
            self._noted = self._look
