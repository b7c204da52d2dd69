"""Defaults of dates and times as people spell them: TiDB before 6.1 keeps them so."""

from __future__ import annotations

import pytest

from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.schema import Column


@pytest.mark.parametrize(
    ("tp", "decimal", "spelled", "value"),
    [
        (10, -1, "2020-1-1", "2020-01-01"),
        (10, -1, "20200102", "2020-01-02"),
        (10, -1, "200102", "2020-01-02"),
        (10, -1, "99/12/3", "1999-12-03"),
        (10, -1, "2020.01.02", "2020-01-02"),
        (10, -1, "2020-1-2 23:59:59", "2020-01-02"),
        (10, -1, "0000-00-00", "0000-00-00"),
        (12, 0, "2020-1-1 1:2:3", "2020-01-01 01:02:03"),
        (12, 3, "20200101010203.5", "2020-01-01 01:02:03.500"),
        (12, 0, "2020-01-01T10:11", "2020-01-01 10:11:00"),
        (7, 6, "2020-06-01 04:00:00.123456", "2020-06-01 04:00:00.123456"),
        (12, 0, "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        (11, 0, "1:2", "01:02:00"),
        (11, 0, "102", "00:01:02"),
        (11, 2, "-838:59:59.25", "-838:59:59.25"),
        (11, 0, "101112", "10:11:12"),
        (11, 0, "1 2:3", "26:03:00"),
        (13, -1, "99", 1999),
        (13, -1, "69", 2069),
        (13, -1, "0", 2000),
        (13, -1, "00", 2000),
        (13, -1, "0000", 0),
        (13, -1, "1901", 1901),
    ],
)
def test_a_row_older_than_a_column_has_the_default_that_was_meant(
    tp: int, decimal: int, spelled: str, value: object
) -> None:
    assert missing_value(Column(1, "c", 0, tp, decimal=decimal, origin_default=spelled)) == value


@pytest.mark.parametrize(
    ("tp", "spelled"),
    [(10, "yesterday"), (10, "2020-13-01"), (12, "2020-1-1 25:0:0"), (11, "now"), (10, "2020-1")],
)
def test_what_nobody_can_read_is_named_with_its_column(tp: int, spelled: str) -> None:
    with pytest.raises(CodecError, match=f"'c' has the origin default '{spelled}'"):
        missing_value(Column(1, "c", 0, tp, origin_default=spelled))
