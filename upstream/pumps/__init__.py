"""Pumps, as seen by who writes to them (the stand-in TiDB) and by who reads from them."""

from upstream.pumps.client import PumpClient, PumpWriteError, WriteTimes
from upstream.pumps.pulled_window import CommitsGoneError, Follower, as_prewrite, check_not_purged, pulled_window
from upstream.pumps.reader import BegunBounds, Entity, PumpReader, PumpReadError, WindowBounds, handed_window

__all__ = [
    "BegunBounds",
    "CommitsGoneError",
    "Entity",
    "Follower",
    "PumpClient",
    "PumpReadError",
    "PumpReader",
    "PumpWriteError",
    "WindowBounds",
    "WriteTimes",
    "as_prewrite",
    "check_not_purged",
    "handed_window",
    "pulled_window",
]
