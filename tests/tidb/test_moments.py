from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb import tso
from sluice.tidb.moments import MomentError, is_relative, parse_moment


def test_digits_are_exact_and_a_time_is_its_whole_millisecond():
    assert parse_moment("407306588892692486") == 407306588892692486
    moment = parse_moment("2019-03-28T05:35:30.920")
    assert (tso.physical_ms(moment), tso.logical(moment)) == (1553751330920, (1 << 18) - 1)


@pytest.mark.parametrize(
    "text", ["2026-11-21T12:00:00+03:00", "2026-11-21 09:00", "2026-11-21 9:00"]
)
def test_a_time_without_a_zone_is_utc(text):
    assert parse_moment(text) == tso.last_of_ms(tso.from_datetime(datetime(2026, 11, 21, 9, 0)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20 minutes ago", 1200),
        ("1 minute ago", 60),
        ("20min ago", 1200),
        ("20m", 1200),
        ("90s ago", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1 day 2 hours ago", 93_600),
        ("3 days ago", 259_200),
        ("2 weeks ago", 1_209_600),
        ("0 seconds ago", 0),
        ("now", 0),
    ],
)
def test_what_was_some_time_ago_is_a_moment_by_this_machines_clock(text, seconds):
    before = tso.wall_clock()
    moment = parse_moment(text)
    assert before <= moment + tso.span(seconds * 1000) <= tso.last_of_ms(tso.wall_clock())


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize(("day", "back"), [("today", 0), ("yesterday", 1), ("Yesterday", 1)])
def test_a_day_by_its_name_is_the_zones_own_day(zone, day, back):
    for _ in range(2):  # again if midnight passes meanwhile
        date = datetime.now(ZoneInfo(zone)).date() - timedelta(days=back)
        moment = tso.to_datetime(parse_moment(f"{day} 14:00 {zone}")).astimezone(ZoneInfo(zone))
        if datetime.now(ZoneInfo(zone)).date() - timedelta(days=back) == date:
            break
    assert (moment.date(), moment.hour, moment.minute) == (date, 14, 0)


def test_a_day_without_a_time_is_its_beginning():
    moment = tso.to_datetime(parse_moment("yesterday"))
    assert (moment.hour, moment.minute, moment.second) == (0, 0, 0)


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)),
    st.sampled_from(["Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Tehran"]),
)
def test_a_time_in_a_zone_is_what_that_zones_clocks_show_or_is_refused(naive, zone):
    naive = naive.replace(microsecond=0)
    instants = {
        instant
        for fold in (0, 1)
        if (instant := naive.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC))
        and instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == naive
    }
    if len(instants) == 1:
        assert tso.to_datetime(parse_moment(f"{naive} {zone}")) == instants.pop()
    else:
        with pytest.raises(MomentError, match="skip" if not instants else "twice"):
            parse_moment(f"{naive} {zone}")


@pytest.mark.parametrize(
    "text",
    [
        *("", "tomorrow", "-5", "1553751330", "1553751330920", "9" * 30, "2026-13-01", "m", "5 x"),
        *("ago", "20 ago", "minutes ago", "20 years ago", "-5 m ago", "20mins 5", "14:00"),
        *("yesterday 25:00", "yesterday 14:00 Europe/Berln", "2026-11-21T09:00Z Europe/Berlin"),
        *("2026-11-21 Nowhere", "today yesterday", "yesterday 14:00+01:00 Europe/Berlin"),
    ],
)
def test_what_is_no_moment_is_refused(text):
    with pytest.raises(MomentError):
        parse_moment(text)


@pytest.mark.parametrize("text", ["before:407306588892692486", " before 407306588892692486 "])
def test_right_before_a_commit_is_a_moment_that_leaves_it_out(text):
    assert parse_moment(text) == 407306588892692485


@pytest.mark.parametrize(
    "text", ["before", "before:", "before:2019-03-28T05:35:30", "before:12345"]
)
def test_before_something_else_than_a_commit_is_no_moment(text):
    with pytest.raises(MomentError):
        parse_moment(text)


NOW = tso.from_datetime(datetime(2026, 11, 21, 9, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2h", datetime(2026, 11, 21, 7, 30, tzinfo=UTC)),
        ("now", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("today", datetime(2026, 11, 21, tzinfo=UTC)),
        ("yesterday 14:00 Asia/Tokyo", datetime(2026, 11, 20, 5, tzinfo=UTC)),
    ],
)
def test_what_is_relative_counts_from_the_given_now(text, moment):
    assert is_relative(text)
    assert parse_moment(text, NOW) == tso.last_of_ms(tso.from_datetime(moment))


@pytest.mark.parametrize("text", ["470614793860415502", "before:470614793860415502", "2026-11-21"])
def test_what_names_its_moment_is_the_same_by_every_clock(text):
    assert not is_relative(text)
    assert parse_moment(text, NOW) == parse_moment(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("20 minuts ago", "unknown word 'minuts'; did you mean minutes?"),
        ("20 minutes agp", "unknown word 'agp'; did you mean ago?"),
        ("1h 3 dais", "unknown word 'dais'; did you mean days?"),
        ("yesterday 14:00 Europe/Berln", "zone 'Europe/Berln'; did you mean Europe/Berlin?"),
        ("yesterdy", "neither a TSO (digits) nor a time; did you mean yesterday?"),
        ("last night", "invalid moment 'last night': neither a TSO (digits) nor a time"),
    ],
)
def test_the_word_that_is_mistyped_is_named(text, said):
    with pytest.raises(MomentError) as caught:
        parse_moment(text)
    assert said in str(caught.value)
