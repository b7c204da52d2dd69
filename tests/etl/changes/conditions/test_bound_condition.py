"""Conditions of filters mean what a real server's WHERE means, or are refused by name."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.changes.conditions import (
    BoundCondition,
    ConditionError,
    ImagePair,
    parse_condition,
)
from sluice.etl.changes.conditions.general_ci import weigh
from sluice.etl.changes.formats.sql_text import literal
from sluice.etl.downstream import MySQLSession
from sluice.tidb.rows import arrow_schema
from sluice.tidb.schema import Table
from tests.etl.story import table
from tests.examples import examples

Row = dict[str, Any]
SIGN = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">=", "<=>"])
EQUALITY = st.sampled_from(["=", "<>", "<=>"])
TEXTS = [
    "",
    "a",
    "A",
    "a ",
    "ab",
    "aB",
    "b%",
    "b_",
    "é",
    "E",
    "ß",
    "s",
    "€",
    "😀",
    "🎉",
    "O'x",
    "ñ",
]
MOMENTS = ["0000-00-00", "1999-12-31", "2026-11-22", "2026-11-23"]


def numbers(*some: str) -> st.SearchStrategy[str]:
    return st.sampled_from([*some, "0", "-1", "1", "2.5", "-0.1", "99999999999999999999", "NULL"])


def quoted(some: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from([literal(one) for one in some] + ["NULL"])


TYPES: dict[str, tuple[st.SearchStrategy[Any], st.SearchStrategy[str], st.SearchStrategy[str]]] = {
    # type: (values, constants as they are typed, signs)
    "int": (st.integers(-3, 3), numbers("-3", "TRUE"), SIGN),
    "bigint unsigned": (
        st.sampled_from([0, 1, 2**63, 2**64 - 1]),
        numbers("18446744073709551615", "9223372036854775808"),
        SIGN,
    ),
    "decimal(20,4)": (
        st.sampled_from(["0.0000", "-0.1000", "2.5000", "1.0001"]),
        numbers("1.00010", "1.00011"),
        SIGN,
    ),
    "double": (st.sampled_from([0.0, -0.1, 2.5, 1e300]), numbers("1e300", "1.5e0"), SIGN),
    "float": (st.sampled_from([0.0, 2.5, -1.0, float(np.float32(0.1))]), numbers("0.1"), SIGN),
    "year": (
        st.sampled_from([1970, 2026, 2155]),
        st.sampled_from(["1970", "2026", "2000.5", "NULL"]),
        SIGN,
    ),
    "bit(8)": (st.integers(0, 3), numbers("3"), SIGN),
    "date": (st.sampled_from(MOMENTS), quoted(MOMENTS[1:]), SIGN),
    "datetime(3)": (
        st.sampled_from([f"{day} 09:30:00.{ms}" for day in MOMENTS[1:] for ms in ("000", "120")]),
        quoted(
            [*MOMENTS[1:], "2026-11-22 09:30:00", "2026-11-22 09:30:00.12", "1999-12-31 00:00:01"]
        ),
        SIGN,
    ),
    "timestamp": (
        st.sampled_from(["2026-11-22 09:30:00", "1999-12-31 23:59:59"]),
        quoted(["2026-11-22 09:30:00", "2026-11-22"]),
        SIGN,
    ),
    "time": (
        st.sampled_from(["-01:00:00", "00:00:00", "100:00:01"]),
        quoted(["-01:00:00", "100:00:01", "23:59:59"]),
        SIGN,
    ),
    "varchar(9) collate utf8mb4_bin": (st.sampled_from(TEXTS), quoted(TEXTS), SIGN),
    "varchar(9) collate utf8mb4_nopad_bin": (st.sampled_from(TEXTS), quoted(TEXTS), SIGN),
    "varchar(9) collate utf8mb4_general_ci": (st.sampled_from(TEXTS), quoted(TEXTS), SIGN),
    "varbinary(9)": (
        st.sampled_from([b"", b"a", b"a ", b"\xff\x00"]),
        st.sampled_from(["x'ff00'", "'a'", "''", "NULL"]),
        SIGN,
    ),
    "enum('x','Y','z') collate utf8mb4_bin": (
        st.sampled_from(["x", "Y", "z"]),
        quoted(["x", "y", "Y", "no"]),
        EQUALITY,
    ),
    "enum('x','Y','z') collate utf8mb4_general_ci": (
        st.sampled_from(["x", "Y", "z"]),
        quoted(["x", "y", "Y", "no"]),
        EQUALITY,
    ),
}
PATTERNS = ["%", "a%", "_", "%b_", "A_", "\\%", "b\\%", "b\\_", "%é%", "s", "__", "%'%"]


@st.composite
def comparisons(draw: st.DrawFn, spec: tuple[tuple[str, str], ...]) -> str:
    name, kind = draw(st.sampled_from(spec))
    _, constants, signs = TYPES[kind]
    shape = draw(st.sampled_from("cccmnbili"))
    negated = draw(st.sampled_from(["", "NOT "]))
    match shape:
        case "n":
            return f"`{name}` IS {negated}NULL"
        case "m":
            return f"{draw(constants)} {draw(signs)} {name}"
        case "i":
            return f"{name} {negated}IN ({draw(constants)}, {draw(constants)})"
        case "b" if signs is SIGN:
            return f"{name} {negated}BETWEEN {draw(constants)} AND {draw(constants)}"
        case "l" if kind.startswith("varchar"):
            pattern = draw(st.sampled_from(PATTERNS)).replace("'", "''")
            return f"{name} {negated}LIKE '{pattern}'"
    others = [other for other, its in spec if its == kind and not its.startswith("enum")]
    if others and shape == "c" and draw(st.booleans()):
        return f"{name} {draw(signs)} {draw(st.sampled_from(others))}"
    return f"{name} {draw(signs)} {draw(constants)}"


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[tuple[str, str], ...], list[Row], str]:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4))
    spec = tuple((f"c{n}", kind) for n, kind in enumerate(kinds))
    rows = [
        {name: draw(st.none() | TYPES[kind][0]) for name, kind in spec}
        for _ in range(draw(st.integers(1, 6)))
    ]
    condition = draw(
        st.recursive(
            comparisons(spec),
            lambda inner: st.one_of(
                st.builds("{} AND {}".format, inner, inner),
                st.builds("{} OR {}".format, inner, inner),
                st.builds("NOT ({})".format, inner),
                st.builds("NOT {}".format, inner),
                st.builds("({})".format, inner),
            ),
            max_leaves=5,
        )
    )
    return spec, rows, condition


def of(spec: tuple[tuple[str, str], ...]) -> Table:
    return table(1, "t", "id int", *(f"{name} {kind}" for name, kind in spec), primary="id")


def images(made: Table, rows: list[Row]) -> dict[str, pa.Array]:
    return {
        field.name: pa.array([row.get(field.name) for row in rows], field.type)
        for field in arrow_schema(made)
    }


def holds(condition: str, made: Table, rows: list[Row]) -> list[bool]:
    pair = ImagePair(len(rows), None, images(made, rows))
    found: list[bool] = BoundCondition(parse_condition(condition), made).holds(pair, "new").tolist()
    return found


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(case=cases())
def test_a_condition_holds_for_the_rows_that_a_server_finds_by_it(
    session: MySQLSession, case: tuple[tuple[tuple[str, str], ...], list[Row], str]
) -> None:
    spec, rows, condition = case
    made = of(spec)
    session.query("SET time_zone = '+00:00', sql_mode = ''")
    session.query("CREATE DATABASE IF NOT EXISTS d")
    columns = "".join(f", {name} {kind} NULL" for name, kind in spec)
    session.query(
        f"CREATE OR REPLACE TEMPORARY TABLE d.t (id int primary key{columns}) CHARSET utf8mb4"
    )
    values = (
        f"({number}{''.join(f', {_value(row[name], kind)}' for name, kind in spec)})"
        for number, row in enumerate(rows)
    )
    session.query(f"INSERT INTO d.t VALUES {', '.join(values)}")
    bound = BoundCondition(parse_condition(condition), made)
    for text in (condition, bound.sql()):
        found = session.query(f"SELECT ({text}) IS TRUE FROM d.t ORDER BY id")
        assert holds(condition, made, rows) == [bool(one) for (one,) in found], text


def _value(value: Any, kind: str) -> str:
    return literal(Decimal(value) if kind.startswith("decimal") and value is not None else value)


def test_the_weights_of_general_ci_are_the_servers(session: MySQLSession) -> None:
    signs = [chr(n) for n in range(32, 0x10000) if not 0xD800 <= n < 0xE000] + ["😀"]
    text = "".join(signs)
    ((found,),) = session.query(
        f"SELECT WEIGHT_STRING(CAST({literal(text)} AS CHAR) COLLATE utf8mb4_general_ci)"
    )
    assert bytes(found).decode("utf-16-be") == weigh(text)


@pytest.mark.parametrize(
    ("spec", "condition", "why"),
    [
        ("v int", "v = '5'", "write a number without quotes"),
        ("v int", "v = 1e3", "without an exponent"),
        ("v int", "w = 1", "has no column w"),
        ("v varchar(9)", "v = 5", "as text in quotes"),
        ("v varchar(9)", "v = x'61'", "as text in quotes"),
        ("v varchar(9) collate utf8mb4_unicode_ci", "v = 'a'", "utf8mb4_unicode_ci"),
        ("v varchar(9) character set gbk", "v = 'a'", "gbk"),
        ("v varchar(9)", "v = 'a\\b'", "a backslash"),
        ("v varchar(9)", "v LIKE 'a\\b'", "a backslash"),
        ("v int", "v LIKE '5%'", "LIKE is for text"),
        ("v date", "v = '2026-11-22 00:00:00'", "is not 'YYYY-MM-DD'"),
        ("v date", "v = '2026-02-30'", "there is no moment"),
        ("v datetime", "v = '2026-11-22 00:00:00.5'", "digits of a second's fraction"),
        ("v year", "v = 70", "four digits"),
        ("v enum('a','b')", "v < 'b'", "an ENUM"),
        ("v set('a','b')", "v = 'a'", "IS NULL"),
        ("v json", "v = 'a'", "IS NULL"),
        ("v int", "v = id AND v < u", "of different types or collations"),
    ],
)
def test_what_is_not_known_to_be_exact_is_refused_by_name(
    spec: str, condition: str, why: str
) -> None:
    made = table(1, "t", "id int", spec, "u bigint unsigned", primary="id")
    with pytest.raises(ConditionError, match=why.replace("(", "\\(")):
        BoundCondition(parse_condition(condition), made)


def test_a_side_is_null_where_the_change_has_none() -> None:
    made = of((("a", "int"),))
    bound = BoundCondition(parse_condition("old.a IS NULL AND a = 1"), made)
    new = images(made, [{"id": 1, "a": 1}, {"id": 2, "a": 2}])
    assert bound.holds(ImagePair(2, None, new), "new").tolist() == [True, False]
    assert bound.holds(ImagePair(2, new, new), "new").tolist() == [False, False]
    assert bound.names_sides
    with pytest.raises(ValueError, match="before and after"):
        bound.sql()


def test_text_that_is_no_utf_8_is_compared_byte_for_byte() -> None:
    made = of((("v", "varchar(9) collate utf8mb4_bin"),))
    raw = pa.array([b"\xe9 ", b"e", None], pa.large_binary())
    text = pa.LargeStringArray.from_buffers(3, *raw.buffers()[1:], raw.buffers()[0])
    pair = ImagePair(3, None, {"v": text})
    for condition, wanted in (
        ("v > 'e'", [True, False, False]),
        ("v LIKE 'e'", [False, True, False]),
    ):
        bound = BoundCondition(parse_condition(condition), made)
        assert bound.holds(pair, "new").tolist() == wanted
