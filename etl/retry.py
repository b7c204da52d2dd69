"""Try again: how long to wait for what may pass, and how to log it.

What is waited for is one line at WARNING, now and then, with since when: an expected wait is no
stack trace.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from sluice.errors import SluiceError

_DELAY_FRACTION = 1 / 8
"""Fraction of the time since the first failure that is added to the wait.

What comes back after a moment is found soon.
"""
_DELAY_S = 0.1, 5.0
_LOG_INTERVAL_S = 30.0
_LONG_WAIT_S = 60.0
"""A restart of a server is over by then, and the lag is something that people ask about."""
LONG_WAITS = "sluice.waiting"
"""Logger of one warning for each wait of more than a minute, which `[airflow] notify` gets."""
_SHOWN_CHARS = 500


class RetryBackoff:
    """Counts failures in a row.

    `who` is the waiting process in the words of the log line: "landing", "applying".
    """

    def __init__(self, log: logging.Logger, who: str) -> None:
        self._log = log
        self._who = who
        self._failures = 0
        self._since = 0.0  # Unix time
        self._began = self._logged_at = 0.0  # by a clock that nobody sets
        self._last: type[SluiceError] | None = None
        self._is_long = False

    def after(self, error: SluiceError, where: str = "") -> float:
        """Return how many seconds to wait after one more failure.

        Logs it the first time, when it is another kind of error, and every 30 s. `where`: how far
        it is.
        """
        now = time.monotonic()
        if not self._failures:
            self._since, self._began, self._last = time.time(), now, None
            self._is_long = False
        least, most = _DELAY_S
        delay = min(max(least, (now - self._began) * _DELAY_FRACTION), most)
        self._failures += 1
        if type(error) is not self._last or now - self._logged_at >= _LOG_INTERVAL_S:
            self._last, self._logged_at = type(error), now
            self._log.warning(
                "%s waits%s, since %s (%.0f s, %d attempts), and tries again: %s: %s",
                self._who,
                where and f" {where}",
                f"{datetime.fromtimestamp(self._since, UTC):%H:%M:%S} UTC",
                now - self._began,
                self._failures,
                type(error).__name__,
                one_line(error),
            )
        if not self._is_long and now - self._began >= _LONG_WAIT_S:
            self._is_long = True
            logging.getLogger(LONG_WAITS).warning(
                "%s has waited for a minute: %s", self._who, one_line(error)
            )
        return delay

    def over(self) -> None:
        """Log that it goes on."""
        if self._failures:
            self._log.info("%s goes on, after %.0f s", self._who, time.monotonic() - self._began)
        self._failures = 0


def one_line(error: BaseException) -> str:
    """Return an error on one line."""
    return " ".join(str(error).split())[:_SHOWN_CHARS]
