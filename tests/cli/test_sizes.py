"""Bytes and seconds as people read them."""

import pytest

from cli._sizes import duration, size


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (4_200, "4.2 kB"),
        (999_960, "1.0 MB"),
        (3_000_000_000, "3.0 GB"),
        (5e18, "5,000.0 PB"),
    ],
)
def test_bytes_are_said_in_the_unit_that_needs_few_digits(count, said):
    assert size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_times_are_said_in_seconds_minutes_or_hours(seconds, said):
    assert duration(seconds) == said
