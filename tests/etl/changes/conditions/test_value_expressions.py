"""An expression is read as MySQL reads it, and its values fit the column that is made for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.etl.changes.conditions import BoundValue, ConditionError, parse_value
from sluice.etl.changes.rules import ComputedColumn
from sluice.etl.downstream.ddl import column_type
from sluice.tidb.column_types import FLAG_AUTO_INCREMENT
from tests.etl.story import column, table

T = table(
    11, "t", "id int", "first varchar(20)", "Last char(30)", "note text", "n smallint",
    "u int unsigned", "big bigint", "price decimal(10,2)", "day date", "at datetime(3)",
    "kind enum('old','new one')", "at0 datetime", "z int zerofill", "at_ts timestamp",
    "raw varbinary(4)", "old varchar(9) character set latin1", "f double", primary="id",
)  # fmt: skip


def sql(text: str) -> str:
    return BoundValue(parse_value(text), T).sql(lambda read: read.name)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("first", "`first`"),
        ("LAST", "rtrim(`Last`)"),
        ("CONCAT(first, ' ', \"l'st\")", "concat(`first`, ' ', 'l''st')"),
        ("n + 2 * price - 1", "((`n` + (2 * `price`)) - 1)"),
        ("(n+2)*price -1", "(((`n` + 2) * `price`) - 1)"),
        ("n--1", "(`n` - -1)"),
        ("n * -1", "(`n` * -1)"),
        ("substr(first, 2)", "substring(`first`, 2)"),
        ("cast(n as decimal(7, 2))", "cast(`n` as decimal(7,2))"),
        ("cast(price as signed)", "cast(`price` as signed)"),
        ("cast(day as char)", "cast(`day` as char)"),
        ("ifnull(`first`, 'none')", "ifnull(`first`, 'none')"),
        ("coalesce(price, 0)", "coalesce(`price`, cast(0 as decimal(10,2)))"),
        ("coalesce(n, 0)", "coalesce(`n`, 0)"),
        ("'eu'", "'eu'"),
    ],
)
def test_an_expression_is_bound_as_mysql_binds_it(text: str, written: str) -> None:
    assert sql(text) == written


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("'eu'", "VARCHAR(2)"),
        ("''", "VARCHAR(1)"),
        ("1", "BIGINT"),
        ("-1.50", "DECIMAL(3,2)"),
        ("concat(first, ' ', last)", "VARCHAR(51)"),
        ("concat_ws('--', first, kind, first)", "VARCHAR(51)"),
        ("concat(n, u, big, price, day, at, at0)", "VARCHAR(103)"),
        ("left(concat(first, note), 200)", "VARCHAR(200)"),
        ("substring(first, 3, 50)", "VARCHAR(20)"),
        ("lower(note)", "MEDIUMTEXT"),
        ("concat(note, left(note, 1000))", "MEDIUMTEXT"),
        ("coalesce(first, last, 'none')", "VARCHAR(30)"),
        ("n + 1", "BIGINT"),
        ("u * u", "BIGINT UNSIGNED"),
        ("price + n", "DECIMAL(11,2)"),
        ("price * price", "DECIMAL(20,4)"),
        ("price * 1.25", "DECIMAL(13,4)"),
        ("coalesce(price, 0)", "DECIMAL(10,2)"),
        ("cast(u as decimal(20)) - n", "DECIMAL(21,0)"),
        ("date(at)", "DATE"),
        ("year(at) * 100 + month(day)", "BIGINT"),
        ("coalesce(at, at)", "DATETIME(3)"),
    ],
)
def test_the_type_holds_every_value_of_the_operands(text: str, wanted: str) -> None:
    assert column_type(ComputedColumn(text).column("new", 0, T)) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an empty expression"),
        ("concat(first", r"\) expected, not the end"),
        ("first last", "'last' after the expression's end"),
        ("first || last", "can't be read"),
        ("now()", r"now\(…\): there is no such function here, but concat,"),
        ("left(first)", r"left\(…\) takes 2 arguments, not 1"),
        ("concat()", "a column or a constant expected"),
        ("cast(n as double)", "CHAR, SIGNED, DECIMAL expected, not 'double'"),
        ("cast(n as decimal(x))", "two numbers of digits"),
        ("old.first", "knows no row before or after"),
        ("(" * 60 + "n" + ")" * 60, "more than 50 expressions"),
    ],
)
def test_what_cannot_be_read_is_said_where(text: str, why: str) -> None:
    with pytest.raises(ConditionError, match=why):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("missing", r"d\.t has no column missing"),
        (r"concat(first, 'a\b')", "a backslash or NUL in quotes is read in different ways"),
        ("u - 1", r"cast\(column as decimal\(20,0\)\)"),
        ("u + n", "a signed and an unsigned number"),
        ("coalesce(u, n)", "a signed and an unsigned number"),
        ("first + 1", r"\+ computes whole numbers and DECIMALs, not text"),
        ("coalesce(first, n)", "values of one type are needed, not int and text"),
        ("coalesce(at, at0)", "other digits of a second"),
        ("price * price * price * price * price * price * price", "the result has 70 digits"),
        ("left(n, 2)", r"left\(…\) takes a text, not int: write cast"),
        ("left(first, n)", "takes plain numbers of characters"),
        ("right(first, -1)", "takes plain numbers of characters"),
        ("year(first)", r"year\(…\) takes a DATE or DATETIME, not text"),
        ("cast(big as decimal(9))", "too small for 20 digits"),
        ("cast(price as decimal(8, 1))", "too small for 9 digits"),
        ("cast(first as signed)", "only signed numbers"),
        ("cast(u as signed)", "only signed numbers"),
        ("cast(n as decimal(70, 2))", "no server has a DECIMAL"),
        ("null", "NULL: only texts"),
        ("1e3", "1e3: only texts, and numbers without exponent"),
        ("x'00'", "only texts"),
        ("1234567890123456789", "more than 18 digits"),
        ("concat(z)", "z is ZEROFILL"),
        ("concat(at_ts)", "at_ts is timestamp"),
        ("concat(raw)", "raw is binary"),
        ("concat(old)", "old has the character set latin1"),
        ("f + 1", "f is double"),
    ],
)
def test_what_servers_may_compute_in_two_ways_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ConditionError, match=why):
        BoundValue(parse_value(text), T)


def test_columns_that_the_downstream_has_not_as_they_are_are_refused() -> None:
    for changed, why in (
        (replace(T.columns[1], state=2, upstream_name="first"), "a rule leaves out"),
        (replace(T.columns[1], mask='["null", "", ""]'), "a rule masks"),
        (replace(T.columns[1], generated="`note`"), "is computed itself"),
        (replace(T.columns[1], flag=FLAG_AUTO_INCREMENT), "AUTO_INCREMENT"),
        (replace(T.columns[1], state=2), r"d\.t has no column first"),
    ):
        made = replace(T, columns=(T.columns[0], changed, *T.columns[2:]))
        with pytest.raises(ConditionError, match=why):
            BoundValue(parse_value("concat(first)"), made)


def test_a_renamed_column_is_named_by_each_server_in_its_own_way() -> None:
    renamed = replace(T.columns[1], name="given", upstream_name="first")
    made = replace(T, columns=(T.columns[0], renamed, *T.columns[2:]))
    found = ComputedColumn("upper(FIRST)").column("u", 0, made)
    assert (found.generated, found.computed) == ("upper(`given`)", "upper(`first`)")


@pytest.mark.parametrize(
    ("value", "given", "why"),
    [
        ("first", "VARCHAR(19)", "texts have up to 20 characters"),
        ("note", "TEXT", "texts have up to 65535 characters"),
        ("price", "DECIMAL(10,1)", "8 digits, and 2 behind the point"),
        ("price", "BIGINT", "values are decimal"),
        ("u + 1", "bigint", "numbers are unsigned"),
        ("n + 1", "bigint unsigned", "numbers are signed"),
        ("big", "decimal(19)", "20 digits"),
        ("at", "datetime", "a second has 3 digits"),
        ("day", "datetime", "values are date"),
    ],
)
def test_a_type_that_would_change_a_value_is_refused(value: str, given: str, why: str) -> None:
    with pytest.raises(ConditionError, match=f"{given.replace('(', '.').replace(')', '.')}.*{why}"):
        ComputedColumn(value, given).column("new", 0, T)


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ("first", "VARCHAR ( 200 )"),
        ("note", "LONGTEXT"),
        ("left(note, 10)", "TEXT"),
        ("price", "DECIMAL(12, 4)"),
        ("big", "DECIMAL(20)"),
        ("7", "BIGINT UNSIGNED"),
        ("at", "DATETIME(3)"),
        ("day", "DATE"),
    ],
)
def test_a_wider_type_is_taken(value: str, given: str) -> None:
    made = ComputedColumn(value, given)
    made.check()
    wanted = given.upper().replace(" ( ", "(").replace(" )", ")").replace(", ", ",")
    assert column_type(made.column("new", 0, T)) in (wanted, wanted.replace(")", ",0)"))


@pytest.mark.parametrize(
    "given",
    [
        "INT",
        "VARCHAR",
        "VARCHAR(20000)",
        "CHAR(3)",
        "DECIMAL",
        "DECIMAL(66)",
        "DATETIME(7)",
        "DATE(3)",
    ],
)
def test_another_type_is_refused_when_settings_are_read(given: str) -> None:
    with pytest.raises(ConditionError, match="type = "):
        ComputedColumn("1", given).check()


def test_columns_have_ids_and_places_behind_all_others() -> None:
    found = ComputedColumn("1").column("new", 2, T)
    assert (found.id, found.offset) == (-3, len(T.columns) + 2)
    assert column(1, "a int").computed == ""
