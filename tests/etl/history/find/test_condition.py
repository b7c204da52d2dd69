"""Conditions over row changes: read safely, and they mean what they mean in SQL."""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.etl.history.errors import ConditionError
from sluice.etl.history.find.condition import ChangeRows, RowCondition
from sluice.tidb.rows import arrow_schema
from sluice.tidb.schema import Table
from tests.etl.story import table
from tests.examples import examples

NUMBERS_AND_TEXT = table(1, "t", "a bigint", "b bigint", "c varchar(20)", primary="a")
VALUES = st.tuples(
    st.integers(-3, 3),
    st.none() | st.integers(-3, 3),
    st.none() | st.sampled_from(["", "a", "A", "ab", "b%", "'", "é"]),
)
NUMBER = st.sampled_from(["a", "b", "0", "-2", "3", "NULL"])
COLUMN = st.sampled_from(["a", "b"])
TEXT = st.sampled_from(["''", "'a'", "'ab'", "''''", "'é'", "'b%'", "NULL"])
COMPARISON = st.one_of(
    st.builds(
        "{} {} {}".format, COLUMN, st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]), NUMBER
    ),
    st.builds("c {} {}".format, st.sampled_from(["=", "<>", "<", ">="]), TEXT),
    st.builds(
        "{} IS {}NULL".format, st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "NOT "])
    ),
    st.builds("{} {}IN ({}, {})".format, COLUMN, st.sampled_from(["", "NOT "]), NUMBER, NUMBER),
    st.builds(
        "{} {}BETWEEN {} AND {}".format, COLUMN, st.sampled_from(["", "NOT "]), NUMBER, NUMBER
    ),
    st.builds(
        "c {}LIKE {}".format,
        st.sampled_from(["", "NOT "]),
        st.sampled_from(["'%'", "'a%'", "'_'", "'%b_'"]),
    ),
)
CONDITION = st.recursive(
    COMPARISON,
    lambda inner: st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=6,
)


def images(of: Table, rows: list[tuple[Any, ...]]) -> dict[str, pa.Array]:
    schema = arrow_schema(of)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return {
        field.name: pa.array(list(c), field.type) for field, c in zip(schema, columns, strict=True)
    }


def fits(
    text: str, of: Table, old: list[tuple[Any, ...]] | None, new: list[tuple[Any, ...]] | None
) -> list[bool]:
    count = len(old if old is not None else new or [])
    rows = ChangeRows(
        of, count, *(None if some is None else images(of, some) for some in (old, new))
    )
    return [bool(each) for each in RowCondition(text).fits(rows)]


@settings(max_examples=examples(100))
@given(condition=CONDITION, rows=st.lists(VALUES, min_size=1, max_size=8))
def test_a_condition_holds_for_the_rows_for_which_sql_says_so(
    condition: str, rows: list[tuple[Any, ...]]
) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA case_sensitive_like = ON")
    database.execute("CREATE TABLE t (a INT, b INT, c TEXT)")
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    said = [
        bool(value) for (value,) in database.execute(f"SELECT {condition} FROM t ORDER BY rowid")
    ]
    database.close()
    assert fits(condition, NUMBERS_AND_TEXT, None, rows) == said


@pytest.mark.parametrize(
    ("spec", "value", "condition"),
    [
        ("v bigint unsigned", 2**64 - 1, "v = 18446744073709551615"),
        ("v decimal(65,30)", "1.100000000000000000000000000000", "v = 1.1"),
        ("v decimal(20,4)", "-0.0001", "v < 0 AND v > -0.001"),
        ("v float", 0.1, "v = 0.1"),
        ("v double", 0.1, "v = 0.1"),
        ("v bit(8)", 5, "v = 5"),
        ("v bit(16)", 258, "v = x'0102'"),
        ("v year", 2026, "v = '2026'"),
        ("v date", "2026-11-22", "v = '2026-11-22' AND v < '2026-11-22 00:00:01'"),
        ("v date", "0000-00-00", "v = '0000-00-00' AND v < '1970-01-01'"),
        ("v datetime(6)", "2026-11-22 09:30:00.000100", "v = '2026-11-22 09:30:00.0001'"),
        ("v datetime", "2026-11-22 09:30:00", "v BETWEEN '2026-11-22' AND '2026-11-23'"),
        ("v timestamp(3)", "2026-11-22 09:30:00.500", "v = '2026-11-22T10:30:00.5+01:00'"),
        ("v time", "-838:59:59", "v < '00:00:00' AND v = '-838:59:59'"),
        ("v time(3)", "100:00:00.250", "v > '99:59:59' AND v = '100:00:00.25'"),
        ("v enum('x','y')", "y", "v = 'y'"),
        ("v set('x','y')", "x,y", "v LIKE '%x%'"),
        ("v json", '{"a": 1}', "v LIKE '%\"a\": 1%'"),
        ("v varbinary(10)", b"\xff\x00", "v = x'ff00'"),
        ("v varchar(10)", "b\\%", "v LIKE 'b%' AND v LIKE '%\\%'"),
    ],
)
def test_values_of_every_type_are_compared_as_what_they_are(
    spec: str, value: Any, condition: str
) -> None:
    of = table(1, "t", "id int", spec, primary="id")
    assert fits(condition, of, None, [(1, value), (2, None)]) == [True, False]
    assert fits(f"NOT ({condition})", of, None, [(1, value), (2, None)]) == [False, False]


def test_a_change_fits_by_what_was_or_by_what_is_and_a_side_can_be_named():
    old, new = [(1, 5, "x"), (2, 5, "x")], [(1, 7, "x"), (2, 5, "y")]
    of = NUMBERS_AND_TEXT
    assert fits("b = 7", of, old, new) == [True, False]
    assert fits("b = 5", of, old, new) == [True, True]
    assert fits("new.b = 5", of, old, new) == [False, True]
    assert fits("old.b <> new.b", of, old, new) == [True, False]
    assert fits("old.c = 'x' AND new.c <> 'x'", of, old, new) == [False, True]
    assert fits("old.b IS NULL", of, None, new) == [True, True], "before an insert there is nothing"
    assert fits("new.b <=> NULL AND a = 1", of, old, None) == [True, False]


def test_a_column_that_the_table_did_not_have_then_is_null():
    assert fits("later = 1", NUMBERS_AND_TEXT, None, [(1, 1, "")]) == [False]
    assert fits("later IS NULL", NUMBERS_AND_TEXT, None, [(1, 1, "")]) == [True]
    assert RowCondition("later = 1 AND `A` = 2").columns == {"later", "a"}


def test_text_that_is_no_utf_8_is_compared_byte_for_byte():
    of = table(1, "t", "id int", "v varchar(9)", primary="id")
    raw = pa.array([b"\xe9", b"e"], pa.large_binary())
    text = pa.LargeStringArray.from_buffers(2, *raw.buffers()[1:], raw.buffers()[0])
    rows = ChangeRows(of, 2, None, {"id": pa.array([1, 2]), "v": text})
    assert np.asarray(RowCondition("v = x'e9'").fits(rows)).tolist() == [True, False]


def test_a_pattern_of_many_signs_takes_no_longer_than_its_text():
    """A backtracking expression needs more steps for this than the universe has had nanoseconds."""
    of = table(1, "t", "id int", "v varchar(99)", primary="id")
    pattern = "%a" * 40 + "%b"
    assert fits(f"v LIKE '{pattern}'", of, None, [(1, "a" * 5_000), (2, "a" * 5_000 + "b")]) == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("a\\\\%", "a\\x"),
        ("a\\b", "a\\b"),
        ("a\\", "a\\"),
        ("a\\_", "a_"),
        ("a_c", "a\nc"),
        ("%é_", "éß"),
    ],
)
def test_a_backslash_escapes_signs_only(pattern: str, value: str) -> None:
    of = table(1, "t", "id int", "v varchar(99)", primary="id")
    assert fits(f"v LIKE '{pattern}'", of, None, [(1, value), (2, "other")]) == [True, False]


def test_a_sign_of_a_pattern_is_a_byte_of_binary_values():
    of = table(1, "t", "id int", "v varbinary(9)", primary="id")
    assert fits("v LIKE 'a_'", of, None, [(1, b"a\xff"), (2, "aé".encode())]) == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a =",
        "a = 1)",
        "(a = 1",
        "1 = 1",
        "a = 1; b",
        "sleep(5) = 1",
        "a = (SELECT 1)",
        "a = b = c",
        "a IS 5",
        "a NOT 5",
        "t.a = 1",
        "a LIKE b",
        "a LIKE 1",
        "a = 'x",
        "a = -- 1",
        "a + 1 = 2",
        "a = @b",
        "NOT " * 60 + "a = 1",
        "a = " + "1" * 11_000,
        "__import__('os').system('x')",
        "a in ()",
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConditionError):
        RowCondition(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [("a = 'x'", "column a"), ("c = 5", "in quotes"), ("a > c", "can't be compared")],
)
def test_what_makes_no_sense_for_a_column_names_it(text: str, named: str) -> None:
    with pytest.raises(ConditionError, match=named):
        fits(text, NUMBERS_AND_TEXT, None, [(1, 1, "x")])
