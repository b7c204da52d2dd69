"""Values at the edges of every type, on their way into a real server and out again, by key and by
their whole row.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.captured_rows import CapturedRows
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table

_DEEP = "[" * 60 + "1" + "]" * 60
# SQL type: values as the row codec has them; a pair is a value and what the server says in its
# place.
VALUES: dict[str, list[Any]] = {
    "tinyint": [-128, 127, 0, None],
    "bigint": [-(2**63), 2**63 - 1],
    "bigint(20) unsigned": [0, 2**63, 2**64 - 1],
    "int(6) unsigned zerofill": [(5, "000005"), 4294967295],
    "year(4)": [(0, "0000"), 1901, 2155],
    "bit(1)": [(0, b"\0"), (1, b"\1"), None],
    "bit(17)": [(65536, b"\1\0\0"), (131071, b"\1\xff\xff")],
    "bit(64)": [(0, bytes(8)), (2**63, b"\x80" + bytes(7)), (2**64 - 1, b"\xff" * 8)],
    "decimal(65,30)": ["-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1", "0." + "0" * 30],
    "decimal(65,0)": ["9" * 65, "9" * 64 + "8", "-" + "9" * 65],
    "date": ["0000-00-00", "2020-00-00", "2020-05-00", "0000-01-01", "9999-12-31", "2021-02-31"],
    "datetime(6)": [
        "0000-00-00 00:00:00.000000",
        "9999-12-31 23:59:59.999999",
        "2020-00-00 12:00:00.000001",
    ],
    "timestamp(6)": [
        "0000-00-00 00:00:00.000000",
        "1970-01-01 00:00:01.000000",
        "2038-01-19 03:14:07.999999",
        "2021-03-28 01:30:00.500000",
    ],
    "time(6)": ["-838:59:59.000000", "838:59:59.000000", "-00:00:00.000001", "00:00:00.000000"],
    "enum('a','b')": ["a", "", None],
    "enum('a','0','')": ["a", "0", ""],
    "set('x','y')": ["", "x,y"],
    "set(" + ",".join(f"'m{i}'" for i in range(64)) + ")": [
        ",".join(f"m{i}" for i in range(64)),
        "m63",
    ],
    "double": [(1.7976931348623157e308, "1.7976931348623157e308"), 5e-324, 0.1, -2.5],
    "float": [
        (0.10000000149011612, "0.1"),
        (3.4028234663852886e38, "3.40282e38"),
        (1e-40, "9.99995e-41"),
    ],
    "float(10,3)": [(1e7, "10000000.000"), (-1e7, "-10000000.000"), (1234567.875, "1234567.875")],
    "double(20,6)": [(1e14, "100000000000000.000000"), (0.1, "0.100000")],
    "varchar(20)": ["", "a ", "é\\", "\0", "\n\r\t", "\\N", "'", "NULL", "😀"],
    "varchar(20) character set latin1": ["é", "日本", "ÿ", "€", "\x81"],
    "varchar(20) character set gbk": ["中文", "a"],
    "enum('中','é') character set gbk": ["中"],
    "binary(4)": [bytes(4), b"a\0\0\0", b"\xff\xfe\0a"],
    "varbinary(9)": [b"", b"\0", b"a ", b"a\0", b"\xff"],
    "longblob": [b"\0\xff" * 9000, b"a" * 4097, b"\\N", b""],
    "longtext": ["x" * 5000, "X" * 5000, "é" * 5000, "é" * 5000, "x"],
    "json": [
        '{"a": 1}',
        '"x"',
        "null",
        "1",
        "1e+300",
        '{"aa": 1, "b": 2}',
        '{"b": {"aa": 1.5, "c": [null]}, "zz": "it\'s \\\\ 日本"}',
        "18446744073709551615",
        "-9223372036854775808",
        _DEEP,
        '["' + "a" * 6000 + '"]',
    ],
}
_NO_KEY = ("json", "longtext", "longblob")


def shown(pair: Any) -> bytes | None:
    value = pair[1] if isinstance(pair, tuple) else pair
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def finds_greatest_float(server: MariaDBServer) -> bool:
    """Return whether FLOAT(10,3) finds its greatest value, 1e7: MySQL takes that number for out of
    range.
    """
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS probe")
        cursor.execute("CREATE TABLE probe.f (c float(10,3))")
        cursor.execute("INSERT INTO probe.f VALUES (9999999.999)")
        found = cursor.execute("SELECT 1 FROM probe.f WHERE c = 10000000e0")
        cursor.execute("DROP DATABASE probe")
        return found == 1


@pytest.mark.quick_cases("binlogs")
@pytest.mark.parametrize("is_captured", [False, True], ids=["binlogs", "captured"])
def test_values_come_and_go_by_key_and_by_their_whole_row(
    mariadb: MariaDBServer, tmp_path: Path, is_captured: bool
) -> None:
    captured = CapturedRows(tmp_path, random.Random(1)) if is_captured else None
    story = Story(mariadb, tmp_path, captured=captured)
    made: dict[str, tuple[Table, list[dict[str, Any]], list[bytes | None]]] = {}
    for number, (sql, pairs) in enumerate(VALUES.items()):
        values = [pair[0] if isinstance(pair, tuple) else pair for pair in pairs]
        rows = [{"id": n, "c": value} for n, value in enumerate(values)]
        heap, key, own = (f"{number}_{what}" for what in ("heap", "key", "own"))
        tables = {
            heap: (table(3 * number, heap, f"c {sql}"), f"`c` {sql} NULL"),
            key: (
                table(3 * number + 1, key, "id int", f"c {sql}", primary="id"),
                f"`id` INT PRIMARY KEY,`c` {sql} NULL",
            ),
        }
        if not sql.startswith(_NO_KEY):
            tables[own] = (
                table(3 * number + 2, own, f"c {sql}", primary="c"),
                f"`c` {sql} PRIMARY KEY",
            )
        for name, (one, body) in tables.items():
            kept = [row for row in rows if row["c"] is not None or name != own]
            if name == own and sql == "float(10,3)" and not finds_greatest_float(mariadb):
                kept = [row for row in kept if abs(row["c"]) < 1e7]
            made[name] = (
                one,
                [dict(row) for row in kept],
                [shown(pairs[row["id"]]) for row in kept],
            )
            story.create(one, f"CREATE TABLE `{name}` ({body})")
            story.insert(one, *made[name][1])
    story.apply()
    with mariadb.connect(conv={}, use_unicode=False) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for name, (of, _, want) in made.items():
            cursor.execute(f"SELECT c FROM d.`{name}`")
            found = [value for (value,) in cursor.fetchall()]
            if of.columns[-1].kind == "json":  # MySQL writes 1e300
                found, want = (
                    [value and json.dumps(json.loads(value), sort_keys=True) for value in each]
                    for each in (found, want)
                )
            assert sorted(found, key=repr) == sorted(want, key=repr), name
    for one, written, _ in made.values():
        story.delete(one, *written)
    story.apply()
    assert {name: story.rows(name) for name in made} == {name: [] for name in made}


def test_rows_without_a_key_are_found_while_a_column_is_being_dropped(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """TiDB's old images lack the column from the moment nobody can read it any more.

    The downstream still has it.
    """
    story = Story(mariadb, tmp_path)
    whole = story.create(
        table(10, "t", "a int", "gone int", "b varchar(5)"),
        "CREATE TABLE `t` (`a` INT,`gone` INT,`b` VARCHAR(5))",
    )
    one, two, three = (
        {"a": 1, "gone": 7, "b": "x"},
        {"a": 1, "gone": 8, "b": "x"},
        {"a": 2, "gone": 9, "b": "y"},
    )
    story.insert(whole, one, two, three)
    rest = Table.from_json(
        {
            **whole.to_json(),
            "columns": [c for c in whole.to_json()["columns"] if c["name"] != "gone"],
        }
    )
    story.changes(
        (whole, UPDATE, encode_update(rest, one, one | {"b": "z"})),
        (whole, DELETE, encode_delete(rest, three)),
        (whole, INSERT, encode_insert(rest, {"a": 5, "b": "n", ROWID_NAME: 99})),
    )
    story.statement(6, "ALTER TABLE `t` DROP COLUMN `gone`", rest)
    story.apply()
    assert story.rows("t") == [(1, "x"), (1, "z"), (5, "n")]


def test_a_default_of_a_column_in_change_is_the_columns_own(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """Rows written before ADD COLUMN ended may hold the new column already, or not.

    Afterwards they hold it.
    """
    story = Story(mariadb, tmp_path)
    old = story.create(
        table(10, "t", "id int", primary="id"), "CREATE TABLE `t` (`id` INT PRIMARY KEY)"
    )
    new = table(
        10,
        "t",
        "id int",
        column(2, "c int not null", origin_default="7", default="7"),
        primary="id",
    )
    story.insert(old, {"id": 1})
    story.changes((new, INSERT, encode_insert(new, {"id": 2, "c": 7})))
    story.statement(5, "ALTER TABLE `t` ADD COLUMN `c` INT NOT NULL DEFAULT 7", new)
    story.changes(
        (old, INSERT, encode_insert(old, {"id": 3})),
        (new, UPDATE, encode_update(new, {"id": 1, "c": 7}, {"id": 1, "c": 8})),
    )
    story.apply()
    assert story.rows("t") == [(1, 8), (2, 7), (3, 7)]
