"""Keeps in TiKV what tells the end of this pump's unfinished transactions.

Of a transaction whose Commit never came TiKV has the record, until its garbage collection drops it together with the
row's old version: ten minutes later, as a rule, if the row was written again. A pump that was down for longer would
then find nothing, as if the transaction had never happened. So the pump registers a service safe point at PD, as
backups do: through there it needs nothing any more. It moves on every half minute; when the pump dies it stays for
`ttl_s`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)

_UPDATE_INTERVAL_S = 30.0
_STOP_TIMEOUT_S = 2.0
_REPORT_INTERVAL_S = 600.0


class SafePointPD(Protocol):
    """What is needed of upstream.PDClient."""

    def tso(self) -> int: ...

    def update_service_gc_safe_point(self, service_id: str, ttl_s: int, safe_point: int) -> int: ...


class ServiceSafePoint:
    """Works in a thread of its own between `start` and `stop`. With `ttl_s` 0 nothing is registered.

    `decided_through(ts)` says through which timestamp, at most `ts`, every acknowledged transaction has its verdict;
    None if that isn't known now.
    """

    def __init__(self, pd: SafePointPD, node_id: str, decided_through: Callable[[int], int | None], ttl_s: int) -> None:
        self._pd, self._decided_through, self._ttl_s = pd, decided_through, ttl_s
        self._service = f"sluice-pump-{node_id}"
        self._reported = -_REPORT_INTERVAL_S
        self._giving_up = self._is_kept_reported = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-versions", daemon=True)

    def start(self) -> None:
        """Registers soon, and moves on from then on."""
        self._thread.start()

    def stop(self, *, give_up: bool = False) -> None:
        """Ends the thread; what is registered stays unless `give_up`. A PD that is away is waited for _END_S at most,
        once.
        """
        if self._stop.is_set() or not self._thread.is_alive():
            return
        self._giving_up = give_up
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)
        if give_up and self._thread.is_alive():
            self._report_kept("no answer yet")

    def advance(self) -> None:
        """Registers how far this pump is. Without PD, or with one that doesn't know service safe points, it is only
        logged.
        """
        if not self._ttl_s:
            return
        try:
            ts = self._decided_through(self._pd.tso())
            if ts is not None:
                self._register(ts)
        except Exception as error:
            self._report("TiKV isn't told to keep what unfinished transactions need, trying again: %s", error)

    def give_up(self) -> None:
        """Nothing is kept for this pump any more: it leaves for good, or with nothing unfinished."""
        try:
            if self._ttl_s:
                self._pd.update_service_gc_safe_point(self._service, 0, 0)
        except Exception as error:
            self._report_kept(error)

    def _register(self, ts: int) -> None:
        least = self._pd.update_service_gc_safe_point(self._service, self._ttl_s, ts)
        if least > ts:
            self._report(
                "TiKV has given up versions through %d already, a transaction that began at %d is unfinished", least, ts
            )

    def _report_kept(self, why: object) -> None:
        if self._is_kept_reported:
            return
        self._is_kept_reported = True
        _log.warning("PD keeps the service safe point %s for %d s: %s", self._service, self._ttl_s, why)

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
