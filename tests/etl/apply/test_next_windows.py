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


FEW = [(2, 20), (3, 50), (1, 60), (1, 70)]
"""Batches of windows with a thousand tables at most, but for one with more."""


@pytest.mark.parametrize(
    ("mode", "round_trip_s", "safe_until", "together"),
    [
        ("atomic", 0.0, 0, [(7, 70)]),
        ("atomic", 0.05, 0, FEW),
        ("atomic", 0.0, 70, FEW),
        ("atomic", 0.0, 15, [FEW[0], (5, 70)]),
        ("parallel", 0.0, 0, [(7, 70)]),
    ],
    ids=["near", "far away", "in safe mode", "behind safe mode", "parallel"],
)
def test_a_batch_that_is_no_series_of_transactions_has_a_thousand_tables_unless_one_window_has_more(
    tmp_path: Path,
    mode: str,
    round_trip_s: float,
    safe_until: int,
    together: list[tuple[int, int]],
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
    limits.observe([], 1.0, round_trip_s)

    def batches(in_flight: InFlight | None) -> list[tuple[int, int, int | None]]:
        found, position = [], 0
        with contextlib.closing(
            WindowSelector(relay, limits, in_flight, None, threading.Event(), safe_until)
        ) as following:
            while position < 70:
                before = position
                windows, position = following.next_batch(position)
                found.append((len(windows), position, following.cut_tables))
                is_cut = mode == "atomic" and not round_trip_s and before >= safe_until
                assert following.cut_tables == (100 if is_cut and before >= first_cut else None)
        return found

    first_cut = 0
    assert [found[:2] for found in batches(None)] == together
    first_cut = 60
    assert batches(InFlight(60))[0] == (6, 60, None)


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
