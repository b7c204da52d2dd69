"""Generated columns: what the server may compute otherwise is a plain column downstream, with the
upstream's values.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.changes.formats.table_fallbacks import zone_dependent_columns
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.tidb.schema import Index, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def stored(number: int, spec: str, expression: str) -> object:
    return column(number, spec, generated=expression, generated_stored=True)


def computing(*columns: object) -> Table:
    return table(10, "t", "id int", "s varchar(20)", "ts timestamp", *columns, primary="id")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "kind", "sure"),
    [
        ("`id`+1", "int", True),
        ("upper(`s`)", "varchar(20)", True),
        ("concat(`s`, _utf8mb4'it''s')", "varchar(30)", True),
        ("date(`ts`)", "date", False),
        ("hour(`ts`)", "int", False),
        ("`id`/2", "int", False),
        ("uuid_to_bin(`s`)", "varchar(16)", False),
        ("cast(`s` as signed)", "int", False),
        ("`id`*1.5", "int", False),
        ("json_extract(`s`, '$.a')", "varchar(9)", False),
        ("from_unixtime(`id`)", "datetime", False),
        ("`id`+1", "double", False),
        ("`other`+1", "int", False),
    ],
)
def test_only_what_every_server_computes_alike_is_left_to_it(
    expression: str, kind: str, sure: bool
) -> None:
    assert zone_dependent_columns(computing(stored(4, f"g {kind}", expression))) == (
        [] if sure else ["g"]
    )


def test_columns_the_server_would_compute_otherwise_keep_upstreams_values_after_later_ddl(
    story: Story,
) -> None:
    made = computing(
        stored(4, "d date", "date(`ts`)"),
        stored(5, "ub varbinary(16)", "uuid_to_bin(`s`)"),
        stored(6, "u varchar(20)", "upper(`s`)"),
        column(7, "h int", generated="hour(`ts`)"),
    )
    made = replace(
        made,
        indexes=(Index(2, "d", (("d", 3, -1),)), Index(3, "ub", (("ub", 4, -1),), unique=True)),
    )
    story.create(made, "CREATE TABLE `t` (…)")
    first = {
        "id": 1,
        "s": "a",
        "ts": "2020-01-01 20:00:00",
        "d": "2020-01-02",
        "ub": b"\xff\0",
        "u": "A",
    }
    story.insert(made, first, {"id": 2, "s": None, "ts": None, "d": None, "ub": None, "u": None})
    summary = story.apply()
    assert (
        sum("plain column with the upstream's values" in warning for warning in summary.warnings)
        == 2
    )
    assert story.rows("t") == [
        (1, "a", datetime.datetime(2020, 1, 1, 20), datetime.date(2020, 1, 2), b"\xff\0", "A", 20),
        (2, None, None, None, None, None, None),
    ]
    wider = replace(
        made,
        columns=(
            *made.columns[:2],
            *(
                replace(c, offset=n)
                for n, c in enumerate((column(9, "n int"), *made.columns[2:]), 2)
            ),
        ),
    )
    wider = replace(
        wider, columns=tuple(replace(c, comment="c") if c.name == "d" else c for c in wider.columns)
    )
    story.statement(
        61,
        "ALTER TABLE `t` ADD COLUMN `n` INT AFTER `s`, MODIFY COLUMN `d` DATE … COMMENT 'c'",
        wider,
    )
    story.update(wider, first | {"n": None}, {"n": 5, "d": "1999-12-31"})
    story.apply()
    assert story.rows("t", "id, n, d, ub, u")[0] == (
        1,
        5,
        datetime.date(1999, 12, 31),
        b"\xff\0",
        "A",
    )


def test_quotes_and_backslashes_in_expressions_mean_the_same_whichever_session_opens_the_table(
    story: Story,
) -> None:
    made = computing(
        stored(4, "q varchar(30)", "concat(`s`, _utf8mb4'it''s')"),
        stored(5, "b varchar(30)", r"concat(`s`, _utf8mb4'a\b')"),
    )
    story.create(made, "CREATE TABLE `t` (…)")
    story.insert(made, {"id": 1, "s": "x", "ts": None, "q": "xit's", "b": r"xa\b"})
    story.apply()
    noted = column(9, "n varchar(9)", default=r"c:\d", comment="'\\")
    wider = replace(made, columns=(*made.columns, replace(noted, offset=5)))
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES")  # so that the statement's session opens it again
    story.statement(61, "ALTER TABLE `t` ADD COLUMN `n` VARCHAR(9) …", wider)
    story.insert(wider, {"id": 2, "s": "y", "ts": None, "q": "yit's", "b": r"ya\b", "n": "1"})
    story.apply()
    assert story.rows("t", "id, q, b, n") == [
        (1, "xit's", r"xa\b", r"c:\d"),
        (2, "yit's", r"ya\b", "1"),
    ]
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW FULL COLUMNS FROM d.t LIKE 'n'")
        assert cursor.fetchone()[-1] == "'\\"


def test_a_table_that_computes_by_itself_what_may_be_otherwise_is_named_with_the_hint(
    story: Story, mariadb: MariaDBServer
) -> None:
    made = story.create(computing(stored(4, "d date", "date(`ts`)")), "CREATE TABLE `t` (…)")
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE d.t DROP COLUMN d, ADD COLUMN d DATE GENERATED ALWAYS AS (DATE(s)) STORED"
        )
    story.insert(made, {"id": 1, "s": "2020-01-01", "ts": "2020-01-01 20:00:00", "d": "2020-01-02"})
    with pytest.raises(ApplyError, match="computes d by itself") as caught:
        story.apply()
    hint = str(caught.value).partition("values: ")[2].partition(";")[0]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(hint)
    story.apply()
    assert story.rows("t", "d") == [(datetime.date(2020, 1, 2),)]


def test_what_no_row_holds_and_the_server_lacks_is_left_out_and_stays_so(story: Story) -> None:
    made = replace(
        computing(column(4, "v bigint unsigned", generated="vitess_hash(`id`)")),
        indexes=(Index(2, "v", (("v", 3, -1),)),),
    )
    story.create(made, "CREATE TABLE `t` (…)")
    story.insert(made, {"id": 1, "s": "a", "ts": None})
    assert any("v of d.t left out" in warning for warning in story.apply().warnings)
    renamed = replace(
        made, columns=(made.columns[0], replace(made.columns[1], name="s2"), *made.columns[2:])
    )
    story.statement(12, "ALTER TABLE `t` CHANGE COLUMN `s` `s2` VARCHAR(20)", renamed)
    story.statement(
        6,
        "ALTER TABLE `t` DROP COLUMN `v`",
        replace(renamed, columns=renamed.columns[:3], indexes=()),
    )
    story.apply()
    assert story.rows("t", "id, s2") == [(1, "a")]
