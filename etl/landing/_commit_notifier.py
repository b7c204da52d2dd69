"""Wait for new commits at the pumps, so that landing need not poll.

A call waits at every pump until a transaction is committed there after what was landed. The answer
is a hint: the window is planned as any other, with a fresh timestamp and every pump's bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.tidb import PumpReader

__all__ = ["CommitNotifier"]


class CommitNotifier:
    """Wait for the pumps that `wait` is given. Used by one thread."""

    def __init__(self, wait_ms: int) -> None:
        """Create the commit notifier; `wait_ms`: how long a call waits at a pump."""
        self._wait_ms = wait_ms
        self._notified = threading.Event()
        self._lock = threading.Lock()
        self._waiting: set[PumpReader] = set()
        self._unsupported: set[PumpReader] = set()

    def wait(self, readers: Iterable[PumpReader], after_ts: int, seconds: float) -> bool | None:
        """Return whether one of these pumps gets a transaction after a TSO, within `seconds`.

        None if one of them does not support such calls.
        """
        wanted = set(readers)
        with self._lock:
            self._unsupported &= wanted
            calls = wanted - self._waiting - self._unsupported
            self._waiting |= calls
            self._notified.clear()
        for reader in calls:
            reader.await_newer(after_ts, self._wait_ms, partial(self._on_answer, reader))
        heard = not self._unsupported and self._notified.wait(seconds)
        return None if self._unsupported else heard

    def _on_answer(self, reader: PumpReader, has_more: bool | None) -> None:  # noqa: FBT001 a callback
        with self._lock:
            self._waiting.discard(reader)
            if has_more is None:
                self._unsupported.add(reader)
            if has_more is not False:
                self._notified.set()
