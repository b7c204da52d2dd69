"""End locks that hold the frontier back.

TiKV's resolved ts stays below every lock, also of a dead TiDB. TiKV sends no hint, and perhaps
nothing else ever reads these keys. So if the frontier stands still, the capture asks the regions
that hold it back for their locks, and ends those of dead transactions.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable

from sluice.errors import SluiceError
from sluice.pump_service.capture.coverage import Piece
from sluice.tidb import tso
from sluice.tidb.pd import PDClient, Region
from sluice.tidb.tikv import TiKVClient
from sluice.tidb.tikv.lock_resolver import LockResolver

_log = logging.getLogger(__name__)

_STANDSTILL_S = 4.0
"""A frontier that stands still longer is held back by more than TiKV's interval of 1 s."""
_LOOK_INTERVAL_S = 5.0
_AHEAD_MS = 4_000
"""Regions whose resolved ts is less than this above the frontier are asked, too."""
_MAX_RANGES = 256
_REPORT_INTERVAL_S = 30.0


class LockWatch:
    """Watch the frontier (`look`), and end locks in a thread of its own (`run`)."""

    def __init__(self, pd: PDClient, tikv: TiKVClient) -> None:
        self._resolver = LockResolver(tikv, pd)
        self._wanted: queue.SimpleQueue[tuple[int, list[tuple[bytes, bytes, int]]] | None] = (
            queue.SimpleQueue()
        )
        self._frontier = 0
        self._moved_at = time.monotonic()
        self._looked_at = self._reported_at = 0.0
        self._is_busy = False
        self._stopped = threading.Event()
        self.held_back_by = ""
        """Description of what holds the frontier back; "" while it moves."""
        self.resolved = 0
        """Locks ended."""

    def look(self, frontier: int, live: Callable[[], Iterable[tuple[Piece, Region]]]) -> None:
        """Take the frontier, several times a second; have locks looked for if it stands still."""
        now = time.monotonic()
        if frontier > self._frontier:
            self._frontier, self._moved_at = frontier, now
            self.held_back_by = ""
            return
        if (
            self._is_busy
            or now - self._moved_at < _STANDSTILL_S
            or now - self._looked_at < _LOOK_INTERVAL_S
        ):
            return
        self._looked_at = now
        target = frontier + tso.span(_AHEAD_MS)
        ranges = [
            (piece.start, piece.end, region.id)
            for piece, region in live()
            if piece.resolved_ts < target
        ]
        if ranges:
            self._is_busy = True
            self._wanted.put((target, ranges[:_MAX_RANGES]))
        else:
            self.held_back_by = "regions that are not subscribed yet"

    def run(self) -> None:
        """End locks until `stop`."""
        while (wanted := self._wanted.get()) is not None:
            try:
                self._end_locks(*wanted)
            except SluiceError as error:
                _log.warning("locks can't be resolved error=%s", error)
            self._is_busy = False

    def stop(self) -> None:
        """End the thread after the lock that it deals with."""
        self._stopped.set()
        self._wanted.put(None)

    def _end_locks(self, target: int, ranges: list[tuple[bytes, bytes, int]]) -> None:
        for start, end, region_id in ranges:
            if self._stopped.is_set():
                return
            report = self._resolver.resolve(start, end, target)
            self.resolved += report.resolved
            for lock in report.live[:1]:
                self.held_back_by = (
                    f"a lock of transaction {tso.text(lock.start_ts)} on key {lock.key.hex()} in"
                    f" region {region_id}, primary {lock.primary.hex()}"
                )
        if self.held_back_by and time.monotonic() - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = time.monotonic()
            _log.warning("capture is held back by %s", self.held_back_by)
