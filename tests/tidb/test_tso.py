from datetime import UTC, datetime, timedelta, timezone

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


@pytest.mark.parametrize(("physical", "logical"), [(-1, 0), (1, -1), (1, 1 << 18), (1 << 45, 0)])
def test_parts_out_of_range_are_refused(physical, logical):
    with pytest.raises(ValueError, match="TSO"):
        tso.compose(physical, logical)


def test_a_timestamp_is_printed_with_its_time_to_the_millisecond():
    assert tso.text(407306588892692486) == "407306588892692486 (2019-03-28 05:35:30.920 UTC)"
    assert tso.time_text(tso.compose(1_553_751_330_000)) == "2019-03-28 05:35:30.000 UTC"
    assert tso.text(0) == "0 (1970-01-01 00:00:00.000 UTC)"
