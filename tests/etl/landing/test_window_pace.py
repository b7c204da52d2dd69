"""How soon a window may follow the one before, by what windows cost."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.landing._job_queue import WindowPace
from sluice.etl.settings import Window

WINDOWS = 500


def intervals(window: Window, costs_ms: list[float]) -> list[float]:
    """Return the intervals (ms) behind windows that cost this much CPU time."""
    used = itertools.accumulate(costs_ms, initial=0.0)
    pace = WindowPace(window, lambda: next(used) / 1000)
    return [pace.next_interval_s() * 1000 for _ in costs_ms]


@given(
    cost_ms=st.floats(0.1, 500),
    interval_ms=st.integers(1, 1_000),
    cpu_percent=st.integers(1, 100),
)
def test_landing_takes_its_share_of_a_core_unless_the_interval_is_the_longest(
    cost_ms: float, interval_ms: int, cpu_percent: int
) -> None:
    last = intervals(Window(interval_ms=interval_ms, cpu_percent=cpu_percent), [cost_ms] * WINDOWS)[
        -1
    ]
    if last < interval_ms * 0.999:
        assert abs(cost_ms / last - cpu_percent / 100) < 0.001
    else:
        assert last <= interval_ms
        assert cost_ms / interval_ms >= cpu_percent / 100 * 0.99


@given(costs_ms=st.lists(st.floats(0, 500), max_size=50))
def test_no_interval_is_longer_than_the_longest_and_without_a_share_all_are(
    costs_ms: list[float],
) -> None:
    assert all(each <= 70 for each in intervals(Window(interval_ms=70, cpu_percent=6), costs_ms))
    fixed = Window(interval_ms=70, cpu_percent=0)
    assert intervals(fixed, costs_ms) == [70.0] * len(costs_ms)


def test_one_expensive_window_changes_the_interval_little() -> None:
    window = Window(interval_ms=200, cpu_percent=10)
    steady = intervals(window, [4.0] * WINDOWS)[-1]
    after = intervals(window, [*[4.0] * WINDOWS, 3_000.0])[-1]
    assert steady < after < 2.5 * steady
