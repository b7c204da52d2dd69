import datetime
import zoneinfo

import pytest

from sluice.tidb.time_zone import find_zone


@pytest.mark.parametrize(
    "name",
    ["", "Mars/Olympus", "+15:00", "+14:01", "+08:60", "+٠٨:٠٠", "8", "../etc/passwd", "Asia"],
)
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown time zone"):
        find_zone(name)


@pytest.mark.parametrize(
    ("name", "minutes"), [("+08:00", 480), ("-03:30", -210), ("+14:00", 840), ("-00:00", 0)]
)
def test_an_offset_is_a_zone_without_summer(name: str, minutes: int) -> None:
    assert find_zone(name) == datetime.timezone(datetime.timedelta(minutes=minutes))


def test_a_name_is_a_zone_of_the_database() -> None:
    assert find_zone("America/New_York") == zoneinfo.ZoneInfo("America/New_York")
