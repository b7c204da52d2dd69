"""Which windows go into one batch."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from unittest import mock

import pytest

from sluice.etl.apply._adaptive_limits import AdaptiveLimits
from sluice.etl.apply._window_selector import MAX_WINDOWS, WindowSelector
from sluice.etl.downstream import InFlight
from sluice.etl.settings import Apply
from sluice.relay import RelayLog, WindowRecord
from sluice.relay.storage import open_storage
from sluice.relay.window import window_path


def test_windows_of_days_without_traffic_are_applied_some_at_a_time_and_a_flight_as_it_was_begun(
    tmp_path: Path,
) -> None:
    relay = RelayLog.open(tmp_path.as_uri())
    count = MAX_WINDOWS + 5
    folder = tmp_path / window_path(0)
    folder.parent.mkdir(parents=True)
    for lo in range(count):
        window = WindowRecord(lo, lo + 1, 7, "token", 0, 0, 0, 0)
        (tmp_path / window.path).write_bytes(window.to_json())

    def batches(in_flight: InFlight | None) -> list[tuple[int, int]]:
        found, position = [], 0
        with contextlib.closing(
            WindowSelector(relay, AdaptiveLimits(Apply()), in_flight, None, threading.Event())
        ) as following:
            while position < count:
                windows, position = following.next_batch(position)
                found.append((len(windows), position))
        return found

    assert batches(None) == [(MAX_WINDOWS, MAX_WINDOWS), (5, count)]
    assert batches(InFlight(count)) == [(count, count)]


@pytest.mark.parametrize(
    ("mode", "together"),
    [("atomic", [(2, 20), (3, 50), (1, 60), (1, 70)]), ("parallel", [(7, 70)])],
)
def test_a_transaction_has_a_thousand_tables_at_most_unless_one_window_has_more(
    tmp_path: Path, mode: str, together: list[tuple[int, int]]
) -> None:
    relay = RelayLog.open(tmp_path.as_uri())
    ids = [
        range(600),
        range(400, 1_000),
        range(300, 1_100),
        range(200, 300),
        range(200, 500),
        range(5_000),
        range(10),
    ]
    for number, some in enumerate(ids):
        tables: dict[str, object] = {str(id): {} for id in some}
        relay.commit(
            WindowRecord(10 * number, 10 * number + 10, 7, "token", 0, 1, len(some), 1, (), tables)
        )
    limits = AdaptiveLimits(Apply(mode=mode))

    def batches(in_flight: InFlight | None) -> list[tuple[int, int]]:
        found, position = [], 0
        with contextlib.closing(
            WindowSelector(relay, limits, in_flight, None, threading.Event())
        ) as following:
            while position < 70:
                windows, position = following.next_batch(position)
                found.append((len(windows), position))
        return found

    assert batches(None) == together
    assert batches(InFlight(60))[0] == (6, 60)


def test_what_comes_next_is_found_by_name_however_many_windows_an_hour_has(tmp_path: Path) -> None:
    """A list costs as much as the hour has windows, some ten thousand, and there are ten windows a
    second.
    """
    storage = open_storage(tmp_path.as_uri())
    relay = RelayLog(storage)
    stopped = threading.Event()
    listed: list[str] = []

    def names(path: str) -> list[str]:
        listed.append(path)
        return names_of(path)

    names_of = storage.names
    with (
        contextlib.closing(
            WindowSelector(relay, AdaptiveLimits(Apply()), None, None, stopped)
        ) as following,
        mock.patch.object(storage, "names", names),
    ):
        position = 0
        for lo in range(5):
            landing = threading.Timer(
                0.1, relay.commit, [WindowRecord(lo, lo + 1, 7, "token", 0, 0, 0, 0)]
            )
            landing.start()
            windows, position = following.next_batch(position)
            landing.join()
            assert [window.lo for window in windows] == [lo]
            assert position == lo + 1
    # where the chain begins
    assert len([path for path in listed if path.startswith("windows")]) <= 2
