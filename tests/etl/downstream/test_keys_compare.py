"""A DELETE made from keys removes exactly the rows with these keys: through the index and in a full
scan, alone, in lists, in pairs.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pymysql.cursors import DictCursor

from sluice.etl.changes.formats.deletes import counting_selects, delete_head, deletes_by_key
from sluice.etl.changes.formats.load_data import format_load
from sluice.etl.changes.formats.sql_columns import row_conditions
from sluice.etl.changes.formats.sql_text import quote_table
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable, read_page
from sluice.tidb.codec.columnar import arrow_type
from sluice.tidb.schema import Column, Table

U64 = 2**64 - 1
TEXT = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
BYTES = {"charset": "binary", "collate": "binary"}
WORDS = (
    "a",
    "A",
    "b",
    "ä",
    "aa",
    "1",
    "01",
    "1.0",
    "",
    "a\\",
    "'",
    "\\'",
    "a\0",
    "\\N",
    "%s",
    "x',\n'y",
    "é",
    "😀",
    "0",
    "null",
)

# name: (SQL type, type number, column options, values no two of which are the same key)
KEYS: dict[str, tuple[str, int, dict[str, Any], list[Any]]] = {
    "bigint": (
        "bigint",
        8,
        {},
        [0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1],
    ),
    "bigint unsigned": (
        "bigint unsigned",
        8,
        {"flag": 32},
        [0, 1, 2**53, 2**53 + 1, 2**63, 2**63 + 1, U64, U64 - 1, U64 - 2],
    ),
    "zerofill": ("int(5) unsigned zerofill", 3, {"flag": 96, "flen": 5}, [0, 1, 12, 2**32 - 1]),
    "decimal": (
        "decimal(20,0)",
        0xF6,
        {"flen": 20, "decimal": 0},
        [f"1234567890123456789{n}" for n in range(10)] + ["0", "-1", "1"],
    ),
    "decimal(65,30)": (
        "decimal(65,30)",
        0xF6,
        {"flen": 65, "decimal": 30},
        [f"{'9' * 35}.{'0' * 29}{n}" for n in range(5)]
        + [f"-0.{'0' * 29}{n}" for n in range(1, 5)]
        + ["0." + "0" * 30],
    ),
    "float": (
        "float",
        4,
        {},
        [
            0.0,
            1.1,
            float(np.nextafter(np.float32(1.1), np.float32(2))),
            16777216.0,
            16777215.0,
            -3.5e38 / 2,
            1e-20,
        ],
    ),
    "float(7,3)": (
        "float(7,3)",
        4,
        {"flen": 7, "decimal": 3},
        [0.0, 1.1, 1.101, -9999.999, 123.456],
    ),
    "float(30,10)": (
        "float(30,10)",
        4,
        {"flen": 30, "decimal": 10},
        [float(np.float32(n)) for n in (0, -7e-10, -6e-10, 3.862e-7, 1.1, 16777216, 1.2e19)],
    ),
    "double(7,3)": (
        "double(7,3)",
        5,
        {"flen": 7, "decimal": 3},
        [0.0, -0.001, 0.001, -0.002, -4.262, 4.262, -9999.999, 9999.998, 1234.567],
    ),
    "double(30,10)": (
        "double(30,10)",
        5,
        {"flen": 30, "decimal": 10},
        [0.0, -7.4e-9, -7.5e-9, -0.0444104292, 2.0**53, 2.0**53 + 2, -1e19, 123456789.0123456789],
    ),
    "double": (
        "double",
        5,
        {},
        [
            0.0,
            0.1,
            float(np.nextafter(0.1, 1)),
            1e300,
            5e-324,
            -5e-324,
            1.7976931348623157e308,
            2.0**53,
            2.0**53 + 2,
        ],
    ),
    "bit": ("bit(64)", 16, {"flen": 64}, [0, 1, 48, 49, 2**53, 2**53 + 1, 2**63, U64, U64 - 1]),
    "bit(1)": ("bit(1)", 16, {"flen": 1}, [0, 1]),
    "year": ("year", 13, {"flag": 32}, [0, 1901, 1970, 2000, 2001, 2069, 2155]),
    "date": (
        "date",
        10,
        {},
        [
            "0000-00-00",
            "0000-01-01",
            "2000-00-00",
            "2001-02-31",
            "2024-02-29",
            "9999-12-31",
            "2020-01-01",
        ],
    ),
    "datetime": (
        "datetime",
        12,
        {},
        [
            "0000-00-00 00:00:00",
            "2020-01-01 00:00:00",
            "2020-01-01 00:00:01",
            "2021-02-30 10:00:00",
        ],
    ),
    "datetime(6)": (
        "datetime(6)",
        12,
        {"decimal": 6},
        [f"2020-01-01 00:00:00.00000{n}" for n in range(10)],
    ),
    "timestamp(3)": (
        "timestamp(3) default '2001-01-01'",
        7,
        {"decimal": 3},
        [
            "0000-00-00 00:00:00.000",
            "2024-03-31 01:30:00.000",
            "2024-03-31 02:30:00.000",
            "2024-10-27 01:30:00.001",
            "2038-01-19 03:14:07.999",
        ],
    ),
    "time(6)": (
        "time(6)",
        11,
        {"decimal": 6},
        [
            "00:00:00.000000",
            "-00:00:00.000001",
            "24:00:00.000000",
            "100:00:00.000000",
            "838:59:59.000000",
            "-838:59:59.000000",
            "00:00:01.000000",
        ],
    ),
    "enum": (
        "enum('2','1','a','B','it''s','a,b','0') collate utf8mb4_bin",
        0xF7,
        {"elems": ("2", "1", "a", "B", "it's", "a,b", "0"), **TEXT},
        ["2", "1", "a", "B", "it's", "a,b", "0"],
    ),
    "set": (
        "set('1','2','x','it''s','0') collate utf8mb4_bin",
        0xF8,
        {"elems": ("1", "2", "x", "it's", "0"), **TEXT},
        ["", "1", "2", "1,2", "1,2,x", "it's", "0"],
    ),
    "varchar": ("varchar(40) collate utf8mb4_bin", 15, {"flen": 40, **TEXT}, [*WORDS]),
    "char": ("char(40) collate utf8mb4_bin", 0xFE, {"flen": 40, **TEXT}, [*WORDS]),
    "nopad": (
        "varchar(40) collate utf8mb4_nopad_bin",
        15,
        {"flen": 40, **TEXT},
        [*WORDS, "a ", " a", "a  "],
    ),
    "gbk": (
        "varchar(40) character set gbk collate gbk_bin",
        15,
        {"flen": 40, "charset": "gbk"},
        ["中", "中文", "a", "A", "\\", "誠"],
    ),
    "varbinary": (
        "varbinary(40)",
        15,
        {"flen": 40, **BYTES},
        [b"", b"a", b"A", b"a\0", b"a ", b"\0", b"\xff", b"\xff\xff", b"'", b"\\", b"0x61", b"1"],
    ),
    "binary": (
        "binary(4)",
        0xFE,
        {"flen": 4, **BYTES},
        [b"\0\0\0\0", b"a\0\0\0", b"a  \0", b"a   ", b"\xff\0\0\0", b"1\0\0\0"],
    ),
}


def column(number: int, name: str, kind: str) -> Column:
    _, tp, options, _ = KEYS[kind]
    return Column(
        number,
        name,
        number - 1,
        tp,
        **({"flag": 0} | options | {"flag": options.get("flag", 0) | 1}),
    )


def arrays_of(columns: tuple[Column, ...], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], arrow_type(c)) for i, c in enumerate(columns)]


def filled(
    session: MySQLSession, kinds: tuple[str, ...], rows: list[tuple[Any, ...]], key: str
) -> tuple[Table, list[pa.Array]]:
    """A table `d.t` of columns of these kinds and a number of the row that no DELETE names, `key`
    as in CREATE TABLE.
    """
    columns = tuple(column(i, f"k{i}", kind) for i, kind in enumerate(kinds, 1))
    number = Column(9, "n", len(columns), 3)
    table = Table(1, 1, "d", "t", (*columns, number))
    session.query("CREATE DATABASE IF NOT EXISTS d CHARACTER SET utf8mb4")
    session.query("DROP TABLE IF EXISTS d.t")
    nopad = session.dialect.collation("utf8mb4_nopad_bin")
    types = [KEYS[kind][0].replace("utf8mb4_nopad_bin", nopad) for kind in kinds]
    specs = ", ".join(f"{c.name} {text} NOT NULL" for c, text in zip(columns, types, strict=True))
    session.query(f"CREATE TABLE d.t ({specs}, n int{key})")
    arrays = arrays_of(columns, rows)
    images = {c.name: a for c, a in zip(columns, arrays, strict=True)} | {
        "n": pa.array(range(len(rows)), pa.int64())
    }
    for chunk in format_load(table, images, len(rows)):
        assert session.load(quote_table(table), chunk.layout, chunk.payload).warnings == 0
    assert session.query("SELECT COUNT(*) FROM d.t") == [(len(rows),)]
    session.commit()
    return replace(table, columns=columns), arrays


def left(session: MySQLSession) -> set[int]:
    return {row[0] for row in session.query("SELECT n FROM d.t")}


def check(session: MySQLSession, table: Table, arrays: list[pa.Array], chosen: list[int]) -> None:
    """Delete the chosen rows, see which are left, and put them back."""
    everything = left(session)
    some = [array.take(pa.array(chosen, pa.int64())) for array in arrays]
    for count, statement in deletes_by_key(table, table.columns, some, once=False):
        assert [session.query(query) for _, query in counting_selects(statement)] == [
            [(1,)]
        ] * count
        assert session.execute(statement) == count, statement
    assert everything - left(session) == set(chosen)
    session.rollback()


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("indexed", [True, False], ids=["through the index", "in a full scan"])
@pytest.mark.parametrize("kind", KEYS)
def test_exactly_the_rows_with_these_keys_go(
    session: MySQLSession, kind: str, indexed: bool
) -> None:
    values = KEYS[kind][3]
    rows = [(value,) for value in values]
    table, arrays = filled(session, (kind,), rows, ", PRIMARY KEY (k1)" if indexed else "")
    for chosen in range(len(rows)):
        check(session, table, arrays, [chosen])
    for seed in range(5):
        check(
            session,
            table,
            arrays,
            random.Random(seed).sample(range(len(rows)), max(1, len(rows) // 2)),
        )


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("kind", KEYS)
def test_values_are_read_back_as_the_upstream_has_them(session: MySQLSession, kind: str) -> None:
    table, (wanted,) = filled(session, (kind,), [(value,) for value in KEYS[kind][3]], "")
    pages = read_page(session, DownstreamTable(table, "d", "t"), "TRUE ORDER BY n")
    found = pa.concat_arrays([batch.column(0) for batch, _ in pages])
    assert found.to_pylist() == wanted.to_pylist()


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("indexed", [True, False], ids=["through the index", "in a full scan"])
@pytest.mark.parametrize("seed", range(6))
def test_keys_of_several_columns_find_exactly_their_rows(
    session: MySQLSession, seed: int, indexed: bool
) -> None:
    chance = random.Random(seed)
    kinds = tuple(chance.sample(sorted(KEYS), 3))
    rows = list({tuple(chance.choice(KEYS[kind][3]) for kind in kinds) for _ in range(60)})
    table, arrays = filled(session, kinds, rows, ", PRIMARY KEY (k1, k2, k3)" if indexed else "")
    check(session, table, arrays, [0])
    check(session, table, arrays, chance.sample(range(len(rows)), len(rows) // 2))


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("kind", KEYS)
def test_rows_without_a_key_are_found_by_all_their_values(session: MySQLSession, kind: str) -> None:
    rows = [(value,) for value in KEYS[kind][3]]
    table, arrays = filled(session, (kind,), rows, "")
    for number, condition in enumerate(row_conditions(table.columns, arrays).to_pylist()):
        assert session.execute(delete_head(table) + condition) == 1, condition
        assert number not in left(session)
        session.rollback()


def test_a_key_is_compared_byte_for_byte_where_the_collation_downstream_is_another(
    session: MySQLSession,
) -> None:
    """'A' is there in the place of 'a': a DELETE of 'a' removes nothing, so that somebody hears of
    it.
    """
    session.query("CREATE DATABASE d")
    session.query(
        "CREATE TABLE d.t (k1 varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY"
        " KEY)"
    )
    session.query("INSERT INTO d.t VALUES ('A'), ('b')")
    table = Table(1, 1, "d", "t", (column(1, "k1", "varchar"),))
    ((_, statement),) = deletes_by_key(
        table, table.columns, [pa.array(["a", "b"], pa.large_string())], once=False
    )
    assert session.execute(statement) == 1
    assert session.query("SELECT k1 FROM d.t") == [("A",)]


@pytest.mark.parametrize(
    "kinds", [("varchar",), ("decimal",), ("varchar", "decimal")], ids="-".join
)
def test_a_long_list_of_keys_goes_through_the_index(
    session: MySQLSession, kinds: tuple[str, ...]
) -> None:
    key = ", ".join(f"k{i}" for i in range(1, len(kinds) + 1))
    rows = [tuple(f"{n}" for _ in kinds) for n in range(20_000)]
    table, arrays = filled(session, kinds, rows, f", PRIMARY KEY ({key})")
    session.query("ANALYZE TABLE d.t")
    some = [array.slice(100, 1000) for array in arrays]
    ((_, statement),) = deletes_by_key(table, table.columns, some, once=False)
    with session.connection.cursor(DictCursor) as cursor:
        if cursor.execute("SHOW VARIABLES LIKE 'explain_format'"):  # MySQL 9 draws a tree
            cursor.execute("SET SESSION explain_format = 'TRADITIONAL'")
        cursor.execute(b"EXPLAIN " + statement)
        (plan,) = cursor.fetchall()
    assert (plan["type"], plan["key"]) == ("range", "PRIMARY")
    assert int(plan["rows"]) < 2000
    assert quote_table(table) == "`d`.`t`"
