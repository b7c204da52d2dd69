"""Clients of pumps: a writer (for the stand-in TiDB) and readers."""

from sluice.tidb.pumps.client import PumpClient, PumpWriteError, WriteTimes
from sluice.tidb.pumps.pulled_window import (
    CommitsGoneError,
    PullFollower,
    as_prewrite,
    check_not_purged,
    pulled_window,
)
from sluice.tidb.pumps.reader import (
    Entity,
    PendingBounds,
    PumpReader,
    PumpReadError,
    WindowBounds,
    window_from_bytes,
)

__all__ = [
    "CommitsGoneError",
    "Entity",
    "PendingBounds",
    "PullFollower",
    "PumpClient",
    "PumpReadError",
    "PumpReader",
    "PumpWriteError",
    "WindowBounds",
    "WriteTimes",
    "as_prewrite",
    "check_not_purged",
    "pulled_window",
    "window_from_bytes",
]
