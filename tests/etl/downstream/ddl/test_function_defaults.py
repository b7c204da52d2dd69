"""Defaults that are functions, whether or not TiDB's description of the column says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.changes.dialect import MYSQL_PRODUCT
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table, wider

# As TiDB keeps them, and how the server shows what it has.
DEFAULTS = [
    ("date", "CURRENT_DATE", False, "curdate()"),
    ("date", "CURRENT_DATE()", False, "curdate()"),
    ("date", "CURDATE()", False, "curdate()"),
    ("date", "UTC_DATE", False, "utc_date()"),
    ("time", "CURRENT_TIME", False, "curtime()"),
    ("time(3)", "CURRENT_TIME(3)", False, "curtime(3)"),
    ("time", "UTC_TIME()", False, "utc_time()"),
    ("datetime", "UTC_TIMESTAMP()", False, "utc_timestamp()"),
    ("datetime(2)", "CURRENT_TIMESTAMP(2)", False, "current_timestamp(2)"),
    ("datetime", "NOW()", False, "current_timestamp()"),
    (
        "datetime",
        "CURRENT_TIMESTAMP + interval 1 day",
        True,
        "(current_timestamp() + interval 1 day",
    ),
    ("date", "current_date", True, "curdate()"),
    ("varchar(36)", "uuid()", True, "uuid()"),
    ("varchar(36)", "replace(upper(uuid()), _utf8mb4'-', _utf8mb4'')", True, "replace("),
    ("double", "rand()", True, "rand()"),
    ("json", "json_object(_utf8mb4'a', 1)", True, "json_object("),
    ("json", "json_array()", True, "json_array()"),
    ("text", "date_format(now(), _utf8mb4'%Y-%m-%d')", True, "date_format("),
    ("varchar(20)", "CURRENT_DATE", False, "'CURRENT_DATE'"),
    ("date", "2024-02-29", False, "'2024-02-29'"),
    ("varbinary(5)", b"\xff\0", False, ("'", "x'ff00'")),  # by MariaDB 10 and 11
]


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def shown(server: MariaDBServer, name: str) -> str:
    """Return the default as MariaDB shows it: a constant in quotes, functions in lower case."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT COLUMN_DEFAULT, EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'd'"
            " AND TABLE_NAME = %s AND COLUMN_NAME = 'c'",
            (name,),
        )
        default, extra = cursor.fetchall()[0]
        if "DEFAULT_GENERATED" in extra:  # MySQL's word for an expression
            return str(default).replace("now()", "current_timestamp()").lower()
        return f"'{default}'" if server.dialect.product == MYSQL_PRODUCT else str(default)


def test_a_default_that_is_a_function_is_one_downstream(
    story: Story, mariadb: MariaDBServer
) -> None:
    for n, (spec, default, says, _) in enumerate(DEFAULTS):
        story.create(
            table(
                10 + n,
                f"t{n}",
                "id int",
                column(2, f"c {spec}", default=default, default_is_expr=says),
                primary="id",
            ),
            "",
        )
    assert not story.apply().warnings
    for n, (spec, default, _, want) in enumerate(DEFAULTS):
        assert shown(mariadb, f"t{n}").startswith(want), (spec, default)


@pytest.mark.parametrize(
    ("spec", "default", "says", "value"),
    [
        ("date", "CURRENT_DATE", False, "2024-02-29"),
        ("time", "CURRENT_TIME", False, "10:11:12"),
        ("varchar(36)", "uuid()", True, "0b7c1a7e-0000-11ef-8000-000000000000"),
        ("double", "rand()", True, "0.25"),
        ("int", "nextval(`d`.`s`)", True, "7"),
    ],
)
def test_rows_that_are_there_have_what_tidb_noted_for_them(
    story: Story, spec: str, default: str, says: bool, value: str
) -> None:
    old = story.create(table(10, "t", "id int", primary="id"), "")
    story.insert(old, {"id": 1})
    added = column(2, f"c {spec}", default=default, default_is_expr=says, origin_default=value)
    story.statement(5, "ALTER TABLE `t` ADD COLUMN `c`", new := wider(old, added))
    story.update(new, {"id": 1, "c": None}, {"id": 1})
    story.apply()
    assert story.rows("t", "CAST(c AS CHAR)") == [(value,)]


@pytest.mark.parametrize(
    ("spec", "default", "value"),
    [("binary(5)", "\ufffd\0\0\0\0", "EFBFBD0000"), ("varbinary(2)", "\ufffd", "EFBF")],
)
def test_a_default_of_bytes_that_tidb_keeps_too_long_is_cut_as_tidb_cuts_it(
    story: Story, spec: str, default: str, value: str
) -> None:
    old = story.create(table(10, "t", "id int", primary="id"), "")
    story.insert(old, {"id": 1}, {"id": 2})
    added = column(2, f"c {spec}", default=default, origin_default=default)
    story.statement(5, "ALTER TABLE `t` ADD COLUMN `c`", new := wider(old, added))
    story.update(new, {"id": 1, "c": None}, {"id": 1})
    story.create(table(11, "u", "id int", added), "")
    story.apply()
    assert story.rows("t", "HEX(c)")[1:] == [(value,)]
