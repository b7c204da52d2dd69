"""Keep the outcomes of this pump's unfinished transactions in TiKV, by a service safe point.

If a Commit never arrives, only TiKV's record tells the outcome. TiKV's garbage collection drops
that record with the row's old version, usually ten minutes later if the row was written again. A
pump that was down longer would find nothing, as if the transaction had never happened. So the pump
registers a service safe point at PD, as backups do: it needs nothing through that timestamp any
more. The safe point advances every half minute, and expires `ttl_s` after the pump dies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from sluice.errors import SluiceError

_log = logging.getLogger(__name__)

_UPDATE_INTERVAL_S = 30.0
_STOP_TIMEOUT_S = 2.0
_REPORT_INTERVAL_S = 600.0


class HistoryLostError(SluiceError):
    """Report that TiKV may have dropped versions that a capture still needs."""

    hint = (
        "replicate from the present on: start the pump with an empty data-dir, then"
        " `sluice bootstrap`; a longer gc-safepoint-ttl keeps the history through a longer outage"
    )


class SafePointPD(Protocol):
    """Declare the methods of tidb.pd.PDClient that are needed."""

    def tso(self) -> int: ...

    def update_service_gc_safe_point(self, service_id: str, ttl_s: int, safe_point: int) -> int: ...


class ServiceSafePoint:
    """Advance the safe point in a thread, from `start` to `stop`.

    With `ttl_s` 0 none is registered. `decided_through(ts)` returns the timestamp, at most `ts`,
    through which every acknowledged transaction has its outcome; None if unknown now.
    """

    def __init__(
        self,
        pd: SafePointPD,
        node_id: str,
        decided_through: Callable[[int], int | None],
        ttl_s: int,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """Create it; `on_lost(why)` is called when PD no longer keeps what this pump needs."""
        self._on_lost = on_lost
        self._pd, self._decided_through, self._ttl_s = pd, decided_through, ttl_s
        self._service = f"sluice-pump-{node_id}"
        self._reported = -_REPORT_INTERVAL_S
        self._giving_up = self._is_kept_reported = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-versions", daemon=True)

    def start(self) -> None:
        """Start the thread, which registers soon and then advances."""
        self._thread.start()

    def stop(self, *, give_up: bool = False) -> None:
        """End the thread; the registration stays unless `give_up`.

        Waits for an unreachable PD up to `_STOP_TIMEOUT_S`, once.
        """
        if self._stop.is_set() or not self._thread.is_alive():
            return
        self._giving_up = give_up
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)
        if give_up and self._thread.is_alive():
            self._report_kept("no answer yet")

    def advance(self) -> None:
        """Register this pump's position.

        A PD that is unreachable, or has no service safe points, is only logged.
        """
        if not self._ttl_s:
            return
        try:
            ts = self._decided_through(self._pd.tso())
            if ts is not None:
                self._register(ts)
        except Exception as error:
            self._report(
                "can't register the safe point that unfinished transactions need, trying again: %s",
                error,
            )

    def claim(self, ts: int) -> None:
        """Register a position before anything is read from it.

        Raises HistoryLostError if TiKV may have dropped versions behind `ts`, PDError.
        """
        least = self._pd.update_service_gc_safe_point(self._service, self._ttl_s, ts)
        if least > ts:
            raise HistoryLostError(
                f"changes after commit ts {ts} can't be captured: PD lets TiKV drop versions"
                f" through {least}"
            )

    def give_up(self) -> None:
        """Remove the registration: the pump leaves for good, or with nothing unfinished."""
        try:
            if self._ttl_s:
                self._pd.update_service_gc_safe_point(self._service, 0, 0)
        except Exception as error:
            self._report_kept(error)

    def _register(self, ts: int) -> None:
        least = self._pd.update_service_gc_safe_point(self._service, self._ttl_s, ts)
        if least > ts and self._on_lost is not None:
            self._on_lost(
                f"PD lets TiKV drop versions through {least}, and the capture has come to {ts} only"
            )
        elif least > ts:
            self._report(
                "TiKV has given up versions through %d already, a transaction that began at %d is"
                " unfinished",
                least,
                ts,
            )

    def _report_kept(self, why: object) -> None:
        if self._is_kept_reported:
            return
        self._is_kept_reported = True
        _log.warning(
            "PD keeps the service safe point %s for %d s: %s", self._service, self._ttl_s, why
        )

    def _report(self, text: str, *values: object) -> None:
        if time.monotonic() - self._reported >= _REPORT_INTERVAL_S:
            self._reported = time.monotonic()
            _log.warning(text, *values)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.advance()
            self._stop.wait(_UPDATE_INTERVAL_S)
        if self._giving_up:
            self.give_up()
