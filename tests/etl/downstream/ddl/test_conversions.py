"""Columns that get another type, on a real server: computed values in place, whatever keys there
are, or nothing touched and all named.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.rules import Filter, NameRule
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.downstream.ddl import _convert as _ddl_convert
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.tidb.schema import Index, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences
from tests.etl.story import Story, column, table

MODIFY = 12
# What TiDB has now is in no other server's type, or in no character set; all other of the 658
# conversions are exact.
REFUSED = {
    "c_float__uint",
    "c_double__uint",
    "c_date__timestamp",
    "c_date__timestamp3",
    "c_binary__latin1",
    "c_json__tinyint",
}


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


@pytest.mark.slow
def test_recorded_conversions_are_exact_on_the_server_or_stop_by_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """A sixth of the tables, those that stop among them.

    `tests/tidb/conversion/test_conversion_recorded.py` has the values of all.
    """
    recording, label, url = RECORDINGS / "conversions", "b_after", f"file://{tmp_path}/relay"
    pairs = json.loads((recording / "pairs.json").read_text())
    chosen = {name for name in pairs if zlib.crc32(name.encode()) % 6 == 0} | REFUSED
    through = next(
        s["ts"]
        for s in json.loads((recording / "snapshots.json").read_text())
        if s["label"] == label
    )
    last = land(recording, url, 100_000, through=through).last()
    assert last is not None
    refused: set[str] = set()
    while True:
        rules = tuple(NameRule("conv", name, name) for name in sorted(chosen - refused))
        settings = Settings(
            Upstream("unused"), Relay(url), mariadb.downstream, filters=Filter(do_tables=rules)
        )
        try:
            run_apply(settings, until_ts=last.hi, run_seconds=300, prepare=local_preparer(settings))
            break
        except DdlError as error:
            named = re.search(
                r"conv\.(c_\w+)\.v from .* to .*: the value .*sluice ddl skip", str(error)
            )
            assert named and named[1] not in refused, error
            refused.add(named[1])
    assert refused == REFUSED
    found = differences(recording, label, mariadb)
    assert [
        line for line in found if line.split(":")[0].removeprefix("conv.") in chosen - refused
    ] == []


def retyped(old: Table, spec: str, number: int = 9, **more: Any) -> Table:
    """`old` after a column got another type, and with it a new id."""
    name = spec.partition(" ")[0]
    return replace(
        old,
        columns=tuple(
            replace(column(number, spec, **more), offset=c.offset) if c.name == name else c
            for c in old.columns
        ),
    )


def test_rows_without_a_key_are_converted_by_their_values(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ddl_convert, "_PAGE_ROWS", 3)
    old = table(10, "t", "a text", "n int")
    story.create(old, "CREATE TABLE `t` (`a` TEXT, `n` INT)")
    values = [*(f"{n}.5" for n in range(20)), "7.5", "a", "A", "", None, "7.5 ", "é"]
    story.insert(old, *({"a": value, "n": n} for n, value in enumerate(values)))
    new = retyped(old, "a decimal(5,1)")
    story.statement(MODIFY, "ALTER TABLE `t` MODIFY COLUMN `a` DECIMAL(5,1)", new, sql_mode=0)
    story.apply()
    got = {n: None if a is None else str(a) for a, n in story.rows("t")}
    assert [got[n] for n in range(27)] == [
        *(f"{n}.5" for n in range(20)),
        "7.5",
        "0.0",
        "0.0",
        "0.0",
        None,
        "7.5",
        "0.0",
    ]
    story.delete(new, {"a": "7.5", "n": 20, "_tidb_rowid": 21})
    story.apply()
    assert len(story.rows("t")) == 26


def test_indexes_place_default_and_clock_columns_stay_as_they_are_upstream(
    story: Story, mariadb: MariaDBServer
) -> None:
    moved = replace(column(4, "u timestamp(3)", default="CURRENT_TIMESTAMP"), flag=8192)
    old = table(
        10, "t", "id int", column(2, "v varchar(20)"), column(3, "k int"), moved, primary="id"
    )
    old = replace(
        old,
        indexes=(
            Index(2, "uv", (("v", 1, -1),), unique=True),
            Index(3, "kv", (("k", 2, -1), ("v", 1, 4))),
            Index(4, "k", (("k", 2, -1),)),
        ),
    )
    story.create(old, "CREATE TABLE `t` (`id` INT PRIMARY KEY)")
    row = {"k": 1, "u": "2020-01-01 00:00:00.123"}
    story.insert(
        old, {"id": 1, "v": "10", **row}, {"id": 2, "v": "0x", **row}, {"id": 3, "v": "100", **row}
    )
    value = replace(column(9, "v bigint not null", default="5"), offset=1)
    new = replace(
        old,
        columns=(old.columns[0], value, *old.columns[2:]),
        indexes=(
            replace(old.indexes[0]),
            Index(3, "kv", (("k", 2, -1), ("v", 1, -1))),
            old.indexes[2],
        ),
    )
    story.statement(
        MODIFY, "ALTER TABLE `t` MODIFY COLUMN `v` BIGINT NOT NULL DEFAULT 5", new, sql_mode=0
    )
    story.apply()
    assert story.rows("t", "id, v, k, CAST(u AS CHAR)") == [
        (i, v, 1, "2020-01-01 00:00:00.123") for i, v in ((1, 10), (2, 0), (3, 100))
    ]
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type, is_nullable, column_default FROM"
            " information_schema.columns WHERE table_schema='d' ORDER BY ordinal_position"
        )
        assert cursor.fetchall()[1] in [("v", "bigint(20)", "NO", "5"), ("v", "bigint", "NO", "5")]
        cursor.execute(
            "SELECT index_name, column_name, sub_part, non_unique FROM"
            " information_schema.statistics WHERE table_schema='d' ORDER BY index_name,"
            " seq_in_index"
        )
        assert cursor.fetchall() == (
            ("k", "k", None, 1),
            ("kv", "k", None, 1),
            ("kv", "v", None, 1),
            ("PRIMARY", "id", None, 0),
            ("uv", "v", None, 0),
        )
        cursor.execute("SHOW TABLES FROM sluice_recycle")
        assert cursor.fetchall() == ()


def test_a_column_is_renamed_and_retyped_and_another_one_too(story: Story) -> None:
    old = table(10, "t", "id int", "a float", "b enum('x','7')", primary="id")
    story.create(old, "CREATE TABLE `t` (`id` INT PRIMARY KEY, `a` FLOAT, `b` ENUM('x','7'))")
    story.insert(
        old,
        {"id": 1, "a": 0.1, "b": "7"},
        {"id": 2, "a": -1.5, "b": ""},
        {"id": 3, "a": None, "b": "x"},
    )
    new = replace(
        old,
        columns=(
            old.columns[0],
            replace(column(8, "c varchar(20)"), offset=1),
            replace(column(9, "b year"), offset=2),
        ),
    )
    story.statement(
        61,
        "ALTER TABLE `t` CHANGE COLUMN `a` `c` VARCHAR(20), MODIFY COLUMN `b` YEAR",
        new,
        sql_mode=0,
    )
    story.apply()
    assert story.rows("t") == [(1, "0.1", 2002), (2, "-1.5", 0), (3, None, 2001)]


def test_a_value_that_cannot_be_exact_stops_before_anything_changed(
    story: Story, mariadb: MariaDBServer
) -> None:
    old = table(10, "t", "id int", "a int", "v time", primary="id")
    story.create(old, "CREATE TABLE `t` (`id` INT PRIMARY KEY, `a` INT, `v` TIME)")
    story.insert(old, {"id": 1, "a": 5, "v": None}, {"id": 2, "a": 6, "v": "10:11:12"})
    new = retyped(retyped(old, "a varchar(9)"), "v datetime", 8)
    story.statement(
        61,
        "ALTER TABLE `t` MODIFY COLUMN `a` VARCHAR(9), MODIFY COLUMN `v` DATETIME",
        new,
        sql_mode=0,
        time_zone="+00:00",
    )
    for _ in range(2):
        with pytest.raises(
            DdlError,
            match=(
                r"d\.t\.v from TIME to DATETIME: the value '10:11:12': the date .* \(in the row"
                r" id=2\).*sluice ddl skip"
            ),
        ):
            story.apply()
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW COLUMNS FROM d.t")
            found = [(row[0], row[1].removesuffix("(11)")) for row in cursor.fetchall()]
            assert found == [("id", "int"), ("a", "int"), ("v", "time")]
            cursor.execute("SHOW TABLES FROM sluice_recycle")
            assert cursor.fetchall() == ()


def test_numbers_that_the_downstream_keeps_otherwise_are_converted_from_upstreams_values(
    story: Story,
) -> None:
    old = table(
        10,
        "t",
        "id int",
        "a decimal(10,2) unsigned zerofill",
        "b double(10,2)",
        "c float(8,3)",
        primary="id",
    )
    story.create(old, "CREATE TABLE `t`")
    story.insert(
        old,
        {"id": 1, "a": "12.50", "b": -0.01, "c": -0.5},
        {"id": 2, "a": "0.00", "b": 99999999.99, "c": 1.125},
    )
    new = retyped(
        retyped(retyped(old, "a varchar(20)", 7), "b decimal(30,20)", 8), "c varchar(20)", 9
    )
    story.statement(61, "ALTER TABLE `t` MODIFY COLUMN `a` VARCHAR(20)", new, sql_mode=0)
    story.apply()
    assert [(i, a, f"{b:f}", c) for i, a, b, c in story.rows("t")] == [
        (1, "12.50", "-0.01000000000000000000", "-0.5"),
        (2, "0.00", "99999999.99000000000000000000", "1.125"),
    ]


def test_a_value_that_only_the_downstream_refuses_is_named_with_its_row(story: Story) -> None:
    old = table(10, "t", "id int", "v json", primary="id")
    story.create(old, "CREATE TABLE `t`")
    story.insert(old, {"id": 1, "v": '"a"'}, {"id": 2, "v": '"\U0001f600"'}, {"id": 3, "v": '"b"'})
    new = retyped(old, "v varchar(20) character set gbk")
    story.statement(
        MODIFY, "ALTER TABLE `t` MODIFY COLUMN `v` VARCHAR(20) CHARACTER SET gbk", new, sql_mode=0
    )
    with pytest.raises(
        DdlError,
        match=(
            r"d\.t\.v from JSON to VARCHAR\(20\).*: the value '\"\U0001f600\"': .*\(in the row"
            r" id=2\).*ddl skip"
        ),
    ):
        story.apply()


def test_floats_of_six_shown_digits_are_not_made_exact_by_guess(story: Story) -> None:
    old = table(10, "t", "id int", "f float", primary="id")
    story.create(old, "CREATE TABLE `t` (`id` INT PRIMARY KEY, `f` FLOAT)")
    story.insert(old, {"id": 1, "f": 1e20}, {"id": 2, "f": 1.5})
    story.statement(
        MODIFY, "ALTER TABLE `t` MODIFY COLUMN `f` BIGINT", retyped(old, "f bigint"), sql_mode=0
    )
    assert not any("taken for" in warning for warning in story.apply().warnings)
    assert story.rows("t") == [(1, (1 << 63) - 1), (2, 2)]
    other = table(11, "u", "id int", "f float", primary="id")
    story.create(other, "CREATE TABLE `u` (`id` INT PRIMARY KEY, `f` FLOAT)")
    story.insert(other, {"id": 1, "f": 1e20})
    wider = retyped(other, "f varchar(30)")
    story.statement(MODIFY, "ALTER TABLE `u` MODIFY COLUMN `f` VARCHAR(30)", wider, sql_mode=0)
    assert any("1e20" in warning and "taken for" in warning for warning in story.apply().warnings)
    assert story.rows("u") == [(1, "100000000000000000000")]
    third = table(12, "w", "id int", "f float", primary="id")
    story.create(third, "CREATE TABLE `w` (`id` INT PRIMARY KEY, `f` FLOAT)")
    story.insert(third, {"id": 1, "f": 3.4028234663852886e38})
    story.statement(
        MODIFY,
        "ALTER TABLE `w` MODIFY COLUMN `f` DOUBLE",
        retyped(third, "f double", 2),
        sql_mode=0,
    )
    with pytest.raises(DdlError, match=r"3\.40282e38: TiDB shows six digits"):
        story.apply()
