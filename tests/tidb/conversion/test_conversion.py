"""Rules of conversions that the recording doesn't show, by TiDB's source."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.tidb.conversion import ConversionError, ConversionSession, convert
from tests.etl.story import column

LOOSE = ConversionSession(0)
STRICT = ConversionSession(1 << 21)
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)


def converted(value: Any, source: str, target: str, session: ConversionSession = LOOSE) -> Any:
    return convert([value], column(1, f"v {source}"), column(2, f"v {target}"), session)[0].as_py()


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        # halves: floats to the even integer, text, decimals and times up
        (2.5, "double", "int", 2),
        (3.5, "double", "int", 4),
        (-2.5, "double", "bigint", -2),
        (b"2.5", "varchar(9)", "int", 3),
        ("2.5", "decimal(5,1)", "int", 3),
        ("-2.5", "decimal(5,1)", "int", -3),
        (b" 1e2x", "varchar(9)", "int", 100),
        (b"", "varchar(9)", "double", 0.0),
        (b".5e1", "varchar(9)", "double", 5.0),
        (b"1e999", "varchar(9)", "double", 1.7976931348623157e308),
        # text that is out of an unsigned type's range becomes NULL, numbers are cut off
        (b"-5", "varchar(9)", "int unsigned", None),
        (-5, "int", "int unsigned", 0),
        (300, "int", "tinyint", 127),
        ("-5", "decimal(5,0)", "bigint unsigned", 0),
        # floats as text: all digits, of a FLOAT its own
        (1e21, "double", "varchar(40)", "1000000000000000000000"),
        (0.10000000149011612, "float", "varchar(40)", "0.1"),
        (1e-7, "double", "varchar(40)", "0.0000001"),
        (0.10000000149011612, "float", "decimal(20,10)", "0.1000000015"),
        # cut off by characters, by bytes for TEXT, but for blanks at the end of CHAR
        ("äöü".encode(), "varchar(9)", "varchar(2)", "äö"),
        (b"ab  ", "varchar(9)", "char(3)", "ab"),
        (b"ab", "varchar(9)", "binary(4)", b"ab\0\0"),
        # years
        (69, "int", "year", 2069),
        (70, "int", "year", 1970),
        (0, "int", "year", 0),
        (b"0", "varchar(9)", "year", 2000),
        (b"0000", "varchar(9)", "year", 0),
        (1850, "int", "year", 1901),
        (3000, "int", "year", 2155),
        (0, "year", "varchar(9)", "0"),
        # dates out of numbers and text
        (240229, "int", "date", "2024-02-29"),
        (991231, "int", "date", "1999-12-31"),
        (20230229, "int", "date", "0000-00-00"),
        (20240229101112, "bigint", "datetime", "2024-02-29 10:11:12"),
        (b"24-2-9 1:2", "varchar(20)", "datetime", "2024-02-09 01:02:00"),
        (b"2024-02-29T23:59:59.9", "varchar(30)", "datetime", "2024-03-01 00:00:00"),
        (b"20240229.1011", "varchar(30)", "datetime", "2024-02-29 10:11:00"),
        (b"2024-02-29 10:11:12+02:00", "varchar(30)", "datetime", "2024-02-29 08:11:12"),
        (b"2024-02-29 10:11:12Z", "varchar(30)", "datetime", "2024-02-29 10:11:12"),
        (b"2024-02-30", "varchar(20)", "date", "0000-00-00"),
        (b"2024-00-01", "varchar(20)", "date", "2024-00-01"),
        # times
        (b"1 10:11:12", "varchar(20)", "time", "34:11:12"),
        (b"101112.6", "varchar(20)", "time", "10:11:13"),
        (b"900:00:00", "varchar(20)", "time", "838:59:59"),
        (b"2024-02-29 10:11:12", "varchar(20)", "time", "10:11:12"),
        (9000000, "int", "time", "838:59:59"),
        (-9000000, "int", "time", None),
        ("-00:00:00.0015", "time(6)", "time(3)", "-00:00:00.001"),
        ("2024-02-29 23:59:59.500000", "datetime(6)", "bigint unsigned", 20240229235960),
        # ENUM and SET by name, by number in digits, by number
        (b"B ", "varchar(9)", "enum('a','b') collate utf8mb4_general_ci", "b"),
        (b"2", "varchar(9)", "enum('a','b')", "b"),
        (3, "int", "enum('a','b')", ""),
        (b"b,a", "varchar(9)", "set('a','b')", "a,b"),
        (3, "int", "set('a','b')", "a,b"),
        (4, "int", "set('a','b')", ""),
        # JSON
        (b' {"b":1,"a":[true]} ', "varchar(30)", "json", '{"a": [true], "b": 1}'),
        (b"no", "varchar(9)", "json", None),
        ("1.50", "decimal(5,2)", "json", "1.5"),
        (1, "enum('y','7')", "json", None),
        (2, "enum('y','7')", "json", "7"),
        (3, "set('y','z')", "json", None),
        (0, "set('y')", "json", None),
        (1, "set('[1','2]')", "json", None),
        (3, "set('[1','2]')", "json", "[1, 2]"),
        (255, "bit(8)", "json", '"\\ufffd"'),
        ("10:11:12", "time", "json", '"10:11:12.000000"'),
        ('"x"', "json", "varchar(9)", '"x"'),
        ("true", "json", "int", 1),
        (256, "int", "bit(8)", 255),
        (-1, "bigint", "bit(64)", (1 << 64) - 1),
        (5, "bit(8)", "varchar(9)", "5"),
        # a time of day is rounded for signed types, its number for unsigned ones
        ("10:11:59.500", "time(3)", "int", 101200),
        ("10:11:59.500", "time(3)", "int unsigned", 101160),
        ("23:59:59.999999", "time(6)", "bit(40)", 235960),
        # a number at the beginning of a JSON string counts, for ENUM and SET too
        ('"2x"', "json", "enum('a','b')", "b"),
        ('"3x"', "json", "set('a','b')", "a,b"),
        ('"x"', "json", "set('a','b')", ""),
        ("-7", "json", "set('a','b')", ""),
        # what JSON can't hold becomes a replacement character each
        (b'"\\ud800x"', "varchar(20)", "json", '"\ufffdx"'),
        (b'"a\xff\xfe"', "blob", "json", '"a\ufffd\ufffd"'),
        (b'{"\xff": 1}', "blob", "json", '{"\ufffd": 1}'),
        # names are compared as the collation says, which in an old cluster is byte for byte
        (b"b ", "varchar(9)", "enum('a','b') collate utf8mb4_nopad_bin", ""),
        (b"b ", "varchar(9)", "set('a','b') collate utf8mb4_bin", "b"),
    ],
)
def test_values_become_what_tidb_makes_of_them(
    value: Any, source: str, target: str, expected: Any
) -> None:
    assert converted(value, source, target) == expected


@pytest.mark.parametrize(
    ("value", "source", "target", "session", "reason"),
    [
        (300, "int", "tinyint", STRICT, "strict mode"),
        (b"x", "varchar(9)", "int", STRICT, "strict mode"),
        (b"no", "varchar(9)", "json not null", LOOSE, "NOT NULL"),
        ('"300"', "json", "tinyint", LOOSE, "beyond the type's range"),
        (1e20, "double", "int unsigned", LOOSE, "beyond the type's range"),
        ("9999-12-31", "date", "timestamp", LOOSE, "beyond the range"),
        (
            "2024-03-10 02:30:00",
            "datetime",
            "timestamp",
            ConversionSession(0, zoneinfo.ZoneInfo("America/New_York"), "America/New_York"),
            "beyond the range",
        ),
        (
            "2024-02-29 10:11:12",
            "timestamp",
            "datetime",
            ConversionSession(0, None, "Mars/Olympus"),
            "Mars/Olympus",
        ),
        ("10:11:12", "time", "datetime", LOOSE, "date on which the upstream converted"),
        (
            "10:11:12",
            "time",
            "datetime",
            ConversionSession(0, began=NOON, ended=NOON + datetime.timedelta(hours=13)),
            "2024-02-29 or 2024-03-01",
        ),
        (20230229, "int", "date", ConversionSession(None), "ALLOW_INVALID_DATES"),
        (3, "int", "enum('a','')", LOOSE, "empty"),
        (b"\xff", "varbinary(9)", "varchar(9) character set latin1", LOOSE, "character set"),
        ("9223372036854775000", "json", "bigint", LOOSE, "integer or a double"),
        ("255.5", "decimal(5,1)", "tinyint unsigned", LOOSE, "versions of TiDB"),
        ("300.7", "decimal(5,1)", "tinyint unsigned", LOOSE, "versions of TiDB"),
        (b"[" * 101 + b"]" * 101, "text", "json", LOOSE, "versions of TiDB"),
        ('"2024-02-29"', "json", "int", LOOSE, "a string or a date or"),
        ('"10:11:12.000000"', "json", "time", LOOSE, "a string or a date or"),
        ('"\\"2024-02-29\\""', "json", "date", LOOSE, "quotes"),
    ],
)
def test_what_cannot_be_exact_is_refused_with_its_reason(
    value: Any, source: str, target: str, session: ConversionSession, reason: str
) -> None:
    with pytest.raises(ConversionError, match=reason):
        converted(value, source, target, session)


def test_a_time_becomes_one_of_the_day_in_the_zone_of_the_session() -> None:
    there = ConversionSession(
        0,
        zoneinfo.ZoneInfo("Asia/Shanghai"),
        "Asia/Shanghai",
        NOON + datetime.timedelta(hours=5),
        NOON + datetime.timedelta(hours=6),
    )
    assert converted("10:11:12", "time", "datetime", there) == "2024-03-01 10:11:12"
    assert converted("-00:00:01", "time", "timestamp", there) == "2024-02-29 15:59:59"


def test_a_wall_time_that_comes_twice_is_the_one_that_go_takes() -> None:
    berlin, new_york = (
        ConversionSession(0, zoneinfo.ZoneInfo(name), name)
        for name in ("Europe/Berlin", "America/New_York")
    )
    assert (
        converted("2024-10-27 02:30:00", "datetime", "timestamp", berlin) == "2024-10-27 01:30:00"
    )
    assert (
        converted("2024-11-03 01:30:00", "datetime", "timestamp", new_york) == "2024-11-03 05:30:00"
    )


KINDS = {
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "varchar(40)": st.text(max_size=40).map(str.encode),
    "varbinary(40)": st.binary(max_size=40),
    "datetime(6)": (
        st.datetimes(datetime.datetime(1000, 1, 1)).map(lambda t: t.isoformat(" ", "microseconds"))
    ),
}
TARGETS = [
    "tinyint",
    "bigint unsigned",
    "float",
    "double(10,2)",
    "decimal(12,3)",
    "char(5)",
    "text",
    "binary(6)",
    "date",
    "datetime(3)",
    "timestamp",
    "time(2)",
    "year",
    "enum('a','7')",
    "set('a','7')",
    "bit(9)",
    "json",
]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind])),
    st.sampled_from(TARGETS),
)
def test_any_value_is_converted_or_refused_and_what_a_strict_session_takes_a_loose_one_takes_alike(
    drawn: tuple[str, Any], target: str
) -> None:
    source, value = drawn
    try:
        found = converted(value, source, target, STRICT)
    except ConversionError:
        try:
            converted(value, source, target)
        except ConversionError:
            return
        return
    assert converted(value, source, target) == found
