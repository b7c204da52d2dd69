"""Keep the pump's entry in the registry current, and write its final state there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sluice.tidb.backoff import Backoff, Deadline
from sluice.tidb.etcd import NodeStatus, Registry

_log = logging.getLogger(__name__)

_RETRY_MS, _RETRY_CAP_MS = 50, 1000
_REPORT_INTERVAL_S = 30.0  # between log lines of one lasting failure


class Heartbeat:
    """Write `status()` to the registry every `every_s` seconds, retrying up to `timeout_s`.

    After `start` only its thread writes, so an older state never overwrites a newer one. Every
    attempt reads the state again, so a write that waits for the registry becomes the final one when
    the pump leaves. `registry` should therefore not retry by itself.
    """

    def __init__(self, registry: Registry, every_s: float, timeout_s: float = 2.0) -> None:
        self.every_s = every_s
        self._join_timeout_s = timeout_s
        self._registry = registry
        self._status: Callable[[], NodeStatus]
        self._changed = threading.Event()
        self._last: Deadline | None = None  # for the final state, once the pump leaves
        self._written = ""  # the state in the registry
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="pump-heartbeat", daemon=True)

    def start(self, status: Callable[[], NodeStatus]) -> None:
        """Start the thread."""
        self._status = status
        self._thread.start()

    def changed(self) -> None:
        """Write the state soon. Returns at once; an unreachable registry is only logged."""
        self._changed.set()

    def end(self) -> None:
        """Write the current state as the final one. Returns at once; `join` waits."""
        self._written = ""
        self._last = Deadline(self._join_timeout_s)
        self._changed.set()

    def join(self) -> None:
        """Wait until the registry has the final state, at most `timeout_s` after `end`.

        A registry that doesn't accept it in time is only logged.
        """
        if self._last is None or self._thread.ident is None:
            return
        self._thread.join(self._last.left())
        state = self._status().state
        if self._written != state:
            _log.error(
                "the registry doesn't know that this pump is %s: %s",
                state,
                self._failure or "no answer yet",
            )

    def _run(self) -> None:
        failed_since = reported = 0.0
        while not self._is_finished():
            if self._last is None:
                self._wait(self.every_s)
            try:
                self._write()
            except Exception as error:
                now = time.monotonic()
                failed_since = failed_since or now
                if now - reported >= _REPORT_INTERVAL_S and self._last is None:
                    reported = now
                    _log.error(
                        "heartbeat failed for %.0f s, the pump continues: %s",
                        now - failed_since,
                        error,
                    )
                continue
            if failed_since:
                _log.info("heartbeat is back after %.0f s", time.monotonic() - failed_since)
                failed_since = reported = 0.0

    def _is_finished(self) -> bool:
        return self._last is not None and (
            self._written == self._status().state or self._last.passed()
        )

    def _write(self) -> None:
        backoff = Backoff(Deadline(self._join_timeout_s), self._wait)
        while True:
            status = self._status()
            try:
                self._registry.update_pump(status)
            except Exception as error:
                self._failure = error
                if self._is_finished() or not backoff.wait("registry", _RETRY_MS, _RETRY_CAP_MS):
                    raise
            else:
                self._written = status.state
                return

    def _wait(self, seconds: float) -> None:
        self._changed.wait(seconds)
        self._changed.clear()
