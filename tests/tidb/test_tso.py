from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb import tso

VECTORS = [
    (407306588892692486, 1553751330920, 6, "2019-03-28T05:35:30.920+00:00"),
    (407306449994645510, 1553750801066, 6, "2019-03-28T05:26:41.066+00:00"),
    (414529105591271429, 1581303045621, 5, "2020-02-10T02:50:45.621+00:00"),
    (418683341902184450, 1597150199517, 2, "2020-08-11T12:49:59.517+00:00"),
]


@pytest.mark.parametrize(("ts", "physical", "logical", "moment"), VECTORS)
def test_published_timestamps_have_these_parts(ts, physical, logical, moment):
    assert tso.physical_ms(ts) == physical
    assert tso.logical(ts) == logical
    assert tso.compose(physical, logical) == ts
    assert tso.to_datetime(ts) == datetime.fromisoformat(moment)
    assert tso.from_datetime(datetime.fromisoformat(moment)) == ts - logical
    assert tso.parse_timestamp(str(ts)) == ts
    assert tso.parse_timestamp(moment) == ts - logical


@given(st.integers(0, (1 << 45) - 1), st.integers(0, (1 << 18) - 1))
def test_a_composed_timestamp_comes_apart_again(physical, logical):
    ts = tso.compose(physical, logical)
    assert (tso.physical_ms(ts), tso.logical(ts)) == (physical, logical)


@given(st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_a_moment_survives_to_the_millisecond(moment):
    back = tso.to_datetime(tso.from_datetime(moment))
    assert timedelta(0) <= moment - back < timedelta(milliseconds=1)


def test_zones_are_converted_and_none_means_utc():
    east = datetime(2026, 11, 21, 12, 0, tzinfo=timezone(timedelta(hours=3)))
    assert tso.from_datetime(east) == tso.from_datetime(datetime(2026, 11, 21, 9, 0))
    assert tso.parse_timestamp("2026-11-21 09:00") == tso.from_datetime(east)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-5", "1553751330", "1553751330920", "9" * 30, "2026-13-01"]
)
def test_what_is_no_timestamp_is_refused(text):
    with pytest.raises(ValueError, match="TSO"):
        tso.parse_timestamp(text)


@pytest.mark.parametrize(("physical", "logical"), [(-1, 0), (1, -1), (1, 1 << 18), (1 << 45, 0)])
def test_parts_out_of_range_are_refused(physical, logical):
    with pytest.raises(ValueError, match="TSO"):
        tso.compose(physical, logical)


def test_a_timestamp_is_printed_with_its_time_to_the_millisecond():
    assert tso.text(407306588892692486) == "407306588892692486 (2019-03-28 05:35:30.920 UTC)"
    assert tso.time_text(tso.compose(1_553_751_330_000)) == "2019-03-28 05:35:30.000 UTC"
    assert tso.text(0) == "0 (1970-01-01 00:00:00.000 UTC)"


def test_a_moment_that_is_a_time_is_the_whole_millisecond_and_digits_are_exact():
    assert tso.parse_moment("407306588892692486") == 407306588892692486
    moment = tso.parse_moment("2019-03-28T05:35:30.920")
    assert (tso.physical_ms(moment), tso.logical(moment)) == (1553751330920, (1 << 18) - 1)
    assert tso.parse_timestamp("2019-03-28T05:35:30.921") == moment + 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20 minutes ago", 1200),
        ("1 minute ago", 60),
        ("20min ago", 1200),
        ("90s ago", 90),
        ("2h ago", 7200),
        ("3 days ago", 259_200),
        ("0 seconds ago", 0),
    ],
)
def test_what_was_some_time_ago_is_a_moment_by_this_machines_clock(text, seconds):
    before = tso.wall_clock()
    moment = tso.parse_moment(text)
    assert before <= moment + tso.span(seconds * 1000) <= tso.last_of_ms(tso.wall_clock())


@pytest.mark.parametrize("text", ["ago", "20 ago", "minutes ago", "20 weeks ago", "-5 m ago"])
def test_what_does_not_say_how_long_ago_is_no_moment(text):
    with pytest.raises(tso.MomentError):
        tso.parse_moment(text)


@pytest.mark.parametrize("text", ["before:407306588892692486", " before 407306588892692486 "])
def test_right_before_a_commit_is_a_moment_that_leaves_it_out(text):
    assert tso.parse_moment(text) == 407306588892692485


@pytest.mark.parametrize(
    "text", ["before", "before:", "before:2019-03-28T05:35:30", "before:12345"]
)
def test_before_something_else_than_a_commit_is_no_moment(text):
    with pytest.raises(tso.MomentError):
        tso.parse_moment(text)


@given(
    st.integers(0, (1 << 44) - 1), st.integers(0, (1 << 18) - 1), st.integers(-(1 << 40), 1 << 40)
)
def test_a_span_moves_the_time_and_leaves_the_counter(physical, logical, ms):
    ts = tso.compose(physical, logical)
    moved = ts + tso.span(ms)
    assert (tso.ms_between(ts, moved), tso.logical(moved)) == (ms, logical)
    assert tso.ms_between(moved, ts) == -ms


def test_spans_and_parts_take_arrays():
    times = np.array([tso.compose(ms, 7) for ms in (0, 5, 600_001)])
    assert tso.physical_ms(times).tolist() == [0, 5, 600_001]
    assert (times - times[0] > tso.span(600_000)).tolist() == [False, False, True]
