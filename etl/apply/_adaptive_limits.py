"""How much of a backlog one batch takes. However large it is, mode `parallel` waits for some 25 round trips: near by
that is nothing, far away a second, so there batches grow until most of their time is work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from sluice.etl.settings import Apply
from sluice.relay import WindowRecord

_ROUND_TRIPS = 100
"""A batch should take as long as so many: a quarter of its time is then waiting."""
_MAX_GROWTH_FACTOR = 4.0
MORE_ROWS, MORE_BYTES = 16.0, 4.0
"""What the settings say grows to at most so many times as much: a batch is in memory while it is prepared."""

_BASE_MAX_TABLES = 1_000
"""In one transaction. For each statement MariaDB goes through all tables that the transaction has touched: with 10,000
of them a row change took 60 times as long.
"""
_BASE_CUT_TABLES = 100
"""In one transaction where changes are spread over so many tables that nearly each of them is a statement."""
_LOCAL_ROUND_TRIP_S = 0.002
"""Each further transaction costs two round trips, and saves some milliseconds."""


class BatchLimits(Protocol):
    """How much a batch may hold."""

    @property
    def max_rows(self) -> int:
        """Row changes."""

    @property
    def max_bytes(self) -> int:
        """Of the relay log's parts."""

    @property
    def max_tables(self) -> int:
        """With row changes."""

    @property
    def cut_tables(self) -> int | None:
        """See `BatchDocument.cut_tables`."""


class AdaptiveLimits:
    """The settings' limits, or more of a backlog while the downstream is far away. One thread tells, another asks."""

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
        """Sessions side by side share the tables, and have smaller transactions."""
        return _BASE_MAX_TABLES if self._settings.mode == "atomic" else sys.maxsize

    @property
    def cut_tables(self) -> int | None:
        """Within a batch, which may be a landed window with any number of tables."""
        return (
            _BASE_CUT_TABLES if self._settings.mode == "atomic" and self._round_trip_s < _LOCAL_ROUND_TRIP_S else None
        )

    def wrote(self, windows: Sequence[WindowRecord], busy_s: float, round_trip_s: float) -> None:
        """A batch of these windows was written in `busy_s`; `round_trip_s` 0: nobody knows. Without a backlog nothing
        is learned from it.
        """
        self._round_trip_s = round_trip_s
        rows = sum(window.changes for window in windows)
        size = sum(part.bytes for window in windows for part in window.parts)
        filled = max(rows / self._settings.max_rows, size / self._settings.max_bytes)
        if self._settings.mode != "parallel" or filled < 1 / 2 or busy_s <= 0:
            return
        wanted = filled * _ROUND_TRIPS * round_trip_s / busy_s
        self._factor = max(1.0, min(wanted, self._factor * _MAX_GROWTH_FACTOR, MORE_ROWS))
