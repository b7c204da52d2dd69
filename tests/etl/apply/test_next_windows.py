"""Which windows go into one batch."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from etl.apply._next_windows import MAX_WINDOWS, NextWindows
from etl.downstream import Flight
from etl.settings import Apply
from relay import RelayLog, Window
from relay.window import window_path


def test_windows_of_days_without_traffic_are_applied_some_at_a_time_and_a_flight_as_it_was_begun(
    tmp_path: Path,
) -> None:
    relay = RelayLog.open(tmp_path.as_uri())
    count = MAX_WINDOWS + 5
    folder = tmp_path / window_path(0)
    folder.parent.mkdir(parents=True)
    for lo in range(count):
        window = Window(lo, lo + 1, 7, "token", 0, 0, 0, 0)
        (tmp_path / window.path).write_bytes(window.to_json())

    def batches(flight: Flight | None) -> list[tuple[int, int]]:
        found, position = [], 0
        with contextlib.closing(NextWindows(relay, Apply(), flight, None, threading.Event())) as following:
            while position < count:
                windows, position = following.after(position)
                found.append((len(windows), position))
        return found

    assert batches(None) == [(MAX_WINDOWS, MAX_WINDOWS), (5, count)]
    assert batches(Flight(count)) == [(count, count)]
