"""Limit how much of a backlog one batch takes.

Whatever the size of a batch, mode `parallel` waits for some 25 round trips. Near the server that is
nothing, far away it is a second. So far away batches grow until most of their time is work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from sluice.etl.settings import Apply
from sluice.relay import WindowRecord

_ROUND_TRIPS = 100
"""A batch should last this many round trips: then it waits for a quarter of its time."""
_MAX_GROWTH_FACTOR = 4.0
MORE_ROWS, MORE_BYTES = 16.0, 4.0
"""Bounds of growth over the settings' limits: a batch is in memory while it is prepared."""

_BASE_MAX_TABLES = 1_000
"""Tables in one transaction.

For each statement MariaDB goes through all tables that the transaction has touched: with 10,000 of
them a row change took 60 times as long.
"""
_BASE_CUT_TABLES = 100
"""Tables in one transaction, if changes are spread so thinly that nearly each is a statement."""
_LOCAL_ROUND_TRIP_S = 0.002
"""Cut only below this: each further transaction costs two round trips, and saves milliseconds."""


class BatchLimits(Protocol):
    """Limits of one batch."""

    @property
    def max_rows(self) -> int:
        """Return the limit on a batch's row changes."""

    @property
    def max_bytes(self) -> int:
        """Return the limit on a batch's bytes of the relay log's parts."""

    @property
    def max_tables(self) -> int:
        """Return the limit on a batch's tables with row changes."""

    @property
    def cut_tables(self) -> int | None:
        """Return the limit on a transaction's tables, `BatchPayload.cut_tables`; None: no limit."""


class AdaptiveLimits:
    """Apply the settings' limits, or larger ones to a backlog while the downstream is far away.

    One thread observes, another reads the limits.
    """

    def __init__(self, settings: Apply) -> None:
        self._settings = settings
        self._factor = 1.0
        self._round_trip_s = 0.0

    @property
    def max_rows(self) -> int:
        return int(self._settings.max_rows * self._factor)

    @property
    def max_bytes(self) -> int:
        return int(self._settings.max_bytes * min(self._factor, MORE_BYTES))

    @property
    def max_tables(self) -> int:
        # Parallel sessions share the tables, and have smaller transactions.
        return _BASE_MAX_TABLES if self._settings.mode == "atomic" else sys.maxsize

    @property
    def cut_tables(self) -> int | None:
        # A batch may be a single landed window, with any number of tables.
        return (
            _BASE_CUT_TABLES
            if self._settings.mode == "atomic" and self._round_trip_s < _LOCAL_ROUND_TRIP_S
            else None
        )

    def observe(self, windows: Sequence[WindowRecord], busy_s: float, round_trip_s: float) -> None:
        """Adapt to a batch of `windows` that was written in `busy_s`; `round_trip_s` 0 is unknown.

        A batch that is less than half full is no backlog, and changes nothing.
        """
        self._round_trip_s = round_trip_s
        rows = sum(window.changes for window in windows)
        size = sum(part.bytes for window in windows for part in window.parts)
        filled = max(rows / self._settings.max_rows, size / self._settings.max_bytes)
        if self._settings.mode != "parallel" or filled < 1 / 2 or busy_s <= 0:
            return
        wanted = filled * _ROUND_TRIPS * round_trip_s / busy_s
        self._factor = max(1.0, min(wanted, self._factor * _MAX_GROWTH_FACTOR, MORE_ROWS))
