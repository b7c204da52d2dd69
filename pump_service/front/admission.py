"""Which connections are taken: counted from accept to close, by the descriptors they hold, in all and
from one address.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 8192
"""descriptors that connections may hold, if the limit of open files allows as many"""
_REPORT_S = 10.0


class Admission:
    """`limit` descriptors for all connections together; one address gets half of them. Belongs to the loop's thread."""

    def __init__(self, limit: int) -> None:
        self.limit = min(limit, MAX_CONNECTIONS)
        self.used = 0
        self._by_host: Counter[str] = Counter()
        self._reported = -_REPORT_S

    def enter(self, host: str, descriptors: int = 1) -> bool:
        """Whether so many more may be taken; if so they count until `leave`."""
        if self.used + descriptors > self.limit or self._by_host[host] + descriptors > self.limit // 2:
            self._report(host)
            if not self._by_host[host]:
                del self._by_host[host]
            return False
        self.used += descriptors
        self._by_host[host] += descriptors
        return True

    def leave(self, host: str, descriptors: int = 1) -> None:
        """They are closed."""
        self.used -= descriptors
        self._by_host[host] -= descriptors
        if not self._by_host[host]:
            del self._by_host[host]

    def _report(self, host: str) -> None:
        now = time.monotonic()
        if now - self._reported >= _REPORT_S:
            self._reported = now
            _log.warning(
                "connection of %s refused: %d descriptors are taken by connections, %d by this address; %d are allowed,"
                " half of them for one address (limit of open files)",
                host,
                self.used,
                self._by_host[host],
                self.limit,
            )
