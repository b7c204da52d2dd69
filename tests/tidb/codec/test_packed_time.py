"""Dates, times and durations: text to packed form and back, also zero dates and negative times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb.codec import CodecError
from sluice.tidb.codec.times import format_duration, format_time, pack_time, parse_duration


@st.composite
def datetimes(draw: st.DrawFn) -> str:
    numbers = [draw(st.integers(0, top)) for top in (9999, 12, 31, 23, 59, 59, 999_999)]
    return "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}".format(*numbers)


@given(datetimes(), datetimes())
def test_datetimes_come_back_and_pack_in_order(a: str, b: str) -> None:
    assert format_time(pack_time(a), 6) == a
    assert format_time(pack_time(a), None) == a[:10]
    assert format_time(pack_time(a), 0) == a[:19]
    assert format_time(pack_time(a), 3) == a[:23]
    assert (pack_time(a) < pack_time(b)) == (a < b)


def test_the_zero_date_is_zero() -> None:
    assert pack_time("0000-00-00 00:00:00") == pack_time("0000-00-00") == 0


@pytest.mark.parametrize(
    "text", ["", "2024-13-01", "2024-01-32", "2024-01-01 24:00:00", "2024-1-1", "yesterday"]
)
def test_text_that_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        pack_time(text)


@pytest.mark.parametrize("packed", [(1 << 64) - 1, 61 << 24, 1_000_000, 25 << 36])
def test_packed_values_out_of_range_are_refused(packed: int) -> None:
    with pytest.raises(CodecError):
        format_time(packed, 6)


@given(st.integers(-3020399_999_999, 3020399_999_999))
def test_durations_come_back_up_to_838_hours(micro: int) -> None:
    text = format_duration(micro * 1000, 6)
    assert parse_duration(text) == micro * 1000


def test_durations_beyond_838_hours_are_refused() -> None:
    assert format_duration(-3020399_999_999_000, 6) == "-838:59:59.999999"
    with pytest.raises(CodecError):
        format_duration(839 * 3600 * 10**9)
    with pytest.raises(CodecError):
        parse_duration("839:00:00")
