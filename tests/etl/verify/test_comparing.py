"""Both sides are compared by what their servers compute; what differs is found row by row."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pymysql
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.downstream import MySQLSession
from sluice.etl.verify import range_compare as comparing
from sluice.etl.verify import table_compare
from sluice.etl.verify.differences import differences_of
from sluice.etl.verify.tables import only_downstream
from sluice.tidb.schema import Schema, Table
from tests.etl.copy.given_rows import NOW, serving
from tests.etl.copy.test_random_tables import KINDS, Made, made_tables, port_rows
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.verify.replicas import Replica

TABLES = int(os.environ.get("SLUICE_TEST_TABLES", "3"))


@contextmanager
def replica_of(
    server: MariaDBServer, folder: Path, one: Table, rows: Sequence[list[Any]]
) -> Iterator[Replica]:
    """Of one table, which is copied."""
    schema = Schema(one.schema_id, one.schema_name, "utf8mb4", "utf8mb4_bin")
    with serving(one, rows, region_rows=50) as address:
        made = Replica(address, SourceSchema(NOW - 1, 5, (schema,), (one,)), server, folder)
        made.copy()
        yield made


def run(server: MariaDBServer, statement: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SET sql_mode = 'ALLOW_INVALID_DATES,NO_BACKSLASH_ESCAPES', time_zone = '+00:00'"
        )
        cursor.execute(statement)
        return list(cursor.fetchall())


ACCOUNT = table(11, "account", "id int", "v varchar(40)", primary="id", clustered=True)
CODES = table(12, "codes", "code varchar(20)", "v varchar(40)", primary="code", clustered=True)
LOG = table(13, "log", "v varchar(40)")


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_compare, "RANGE_BYTES", 4096)
    monkeypatch.setattr(comparing, "ROWS_PER_READ", 10)
    monkeypatch.setattr(comparing, "MAX_HELD_ROWS", 100)


def rows_of(one: Table) -> list[list[Any]]:
    numbers = range(300)
    if one is LOG:
        return [[f"v{n % 40}".encode(), n + 1] for n in numbers]
    return [[n if one is ACCOUNT else f"code {n:03}".encode(), f"v{n}".encode()] for n in numbers]


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize(
    "one",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in (ACCOUNT, LOG)), CODES],
    ids=lambda one: one.name,
)
def test_what_differs_in_a_large_table_is_found_by_cutting_it(
    mariadb: MariaDBServer, tmp_path: Path, one: Table
) -> None:
    name = one.full_name
    with replica_of(mariadb, tmp_path, one, rows_of(one)) as replica:
        found = replica.compare()[name].found
        assert (found.rows, found.apart, found.more) == (300, None, 0)
        run(mariadb, f"UPDATE {name} SET v = 'V7' WHERE v = 'v7' LIMIT 1")
        run(mariadb, f"DELETE FROM {name} WHERE v = 'v39' LIMIT 1")
        new = {"account": "1000, 'new'", "codes": "'code 5000', 'new'", "log": "'v5'"}[one.name]
        run(mariadb, f"INSERT INTO {name} VALUES ({new})")
        found = replica.compare()[name].found
    assert found.apart is not None and found.more == 0
    told = differences_of(found.apart, 20)
    if one is LOG:
        assert Counter((d.kind, str(d.key["v"]), d.times) for d in told) == Counter(
            [("missing", "v7", 1), ("missing", "v39", 1), ("extra", "V7", 1), ("extra", "v5", 1)]
        )
    else:
        assert Counter(d.kind for d in told) == {"changed": 1, "missing": 1, "extra": 1}
        (changed,) = (d for d in told if d.kind == "changed")
        assert changed.upstream is not None and changed.downstream is not None
        assert (changed.upstream["v"], changed.downstream["v"], changed.columns) == (
            "v7",
            "V7",
            ("v",),
        )


@pytest.mark.slow
@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize(
    "most_apart", [pytest.param(comparing.MAX_DIFFERING_ROWS, marks=pytest.mark.slow), 20]
)
def test_where_two_servers_order_text_in_two_ways_only_what_differs_is_found(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_apart: int
) -> None:
    monkeypatch.setattr(comparing, "MAX_DIFFERING_ROWS", most_apart)
    rows = [
        [f"{'Code' if n % 3 else 'code'} {n:03}".encode(), f"v{n}".encode()] for n in range(300)
    ]
    name = CODES.full_name
    with replica_of(mariadb, tmp_path, CODES, sorted(rows)) as replica:
        run(
            mariadb,
            f"ALTER TABLE {name} MODIFY code VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL",
        )
        found = replica.compare()[name].found
        assert (found.rows, found.apart, found.more) == (300, None, 0)
        run(mariadb, f"DELETE FROM {name} WHERE v = 'v39'")
        run(mariadb, f"UPDATE {name} SET v = 'V7' WHERE v = 'v7'")
        run(mariadb, f"INSERT INTO {name} VALUES ('code 0391', 'new')")
        found = replica.compare()[name].found
    assert found.apart is not None and found.more == 0
    told = sorted((one.kind, one.key["code"]) for one in differences_of(found.apart, 20))
    assert told == [("changed", "Code 007"), ("extra", "code 0391"), ("missing", "code 039")]


def test_tables_and_columns_that_only_the_downstream_has_are_reported(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica_of(mariadb, tmp_path, ACCOUNT, rows_of(ACCOUNT)[:3]) as replica:
        run(mariadb, "CREATE TABLE d.left_over (id INT)")
        run(mariadb, "CREATE DATABASE elsewhere")
        run(mariadb, "CREATE TABLE elsewhere.mine (id INT)")
        run(mariadb, "ALTER TABLE d.account ADD noted DATETIME")
        session = MySQLSession(mariadb.downstream)
        session.connect()
        try:
            assert only_downstream(replica.settings, replica.known, session) == ["d.left_over"]
        finally:
            session.close()
        (table_,) = replica.compare().values()
        assert "only the downstream has the column noted" in table_.table.notes


@pytest.mark.slow
@pytest.mark.usefixtures("cut_small")
def test_of_a_table_that_differs_everywhere_some_rows_are_looked_at_and_the_others_counted(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "MAX_DIFFERING_ROWS", 50)
    with replica_of(mariadb, tmp_path, ACCOUNT, rows_of(ACCOUNT)) as replica:
        run(mariadb, f"UPDATE {ACCOUNT.full_name} SET v = CONCAT(v, ' ')")
        found = replica.compare()[ACCOUNT.full_name].found
        assert found.apart is not None and 25 <= found.apart.count < 300 and found.more
        run(mariadb, f"DELETE FROM {ACCOUNT.full_name}")
        found = replica.compare()[ACCOUNT.full_name].found
        assert (
            found.apart is not None
            and found.apart.come.num_rows >= 25
            and found.apart.gone.num_rows == 0
        )


@pytest.mark.slow
@settings(max_examples=TABLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=made_tables(), data=st.data())
def test_any_table_is_equal_by_checksums_alone_and_any_one_change_is_found(
    mariadb: MariaDBServer, made: Made, data: st.DataObject
) -> None:
    mariadb.empty()
    with (
        tempfile.TemporaryDirectory() as folder,
        replica_of(mariadb, Path(folder), made.table, rounded(made)) as replica,
    ):
        found = replica.compare()[made.table.full_name].found
        by_rows = len(made.rows) if "json" in made.kinds and mariadb.dialect.has_json_type else 0
        assert (found.rows, found.apart, found.by_rows) == (len(made.rows), None, by_rows)
        before = contents(mariadb, made)
        corrupted(mariadb, made, data)
        differing = before - contents(mariadb, made), contents(mariadb, made) - before
        found = replica.compare()[made.table.full_name].found
        assert (found.apart is not None) == any(differing)


def rounded(made: Made) -> list[list[Any]]:
    """As TiDB has them: a FLOAT has 32 bits."""
    floats = [number for number, kind in enumerate(made.kinds) if kind == "float"]
    rows = port_rows(made)
    for row in rows:
        for number in floats:
            row[number] = None if row[number] is None else float(np.float32(row[number]))
    return rows


def contents(server: MariaDBServer, made: Made) -> Counter[tuple[Any, ...]]:
    names = [f"`{c.name.replace('`', '``')}`" for c in made.table.columns]
    columns = [
        f"HEX({n}*1e15), {n}*1e0" if c.kind in ("float", "double") else f"HEX(CAST({n} AS BINARY))"
        for n, c in zip(names, made.table.columns, strict=True)
    ]
    return Counter(run(server, f"SELECT {', '.join(columns)} FROM {place(made)}"))


def place(made: Made) -> str:
    return f"{made.table.schema_name}.`{made.table.name.replace('`', '``')}`"


def corrupted(server: MariaDBServer, made: Made, data: st.DataObject) -> None:
    """One row is gone, is there twice, or has another value somewhere."""
    how = data.draw(st.sampled_from(["delete", "twice", "value", "value", "value"]))
    number = data.draw(st.integers(0, len(made.kinds) - 1))
    value = data.draw(st.none() | KINDS[made.kinds[number]].values)
    name = f"`{made.table.columns[number].name.replace('`', '``')}`"
    literal = "NULL" if value is None else f"x'{value.hex()}'"
    if value is not None and made.kinds[number] not in ("varbinary", "blob"):
        literal = f"CONVERT({literal} USING utf8mb4)"
    statement = {
        "delete": f"DELETE FROM {place(made)} LIMIT 1",
        "twice": f"INSERT INTO {place(made)} SELECT * FROM {place(made)} LIMIT 1",
        "value": f"UPDATE {place(made)} SET {name} = {literal} LIMIT 1",
    }[how]
    try:
        run(server, statement)
    except pymysql.err.MySQLError:  # a key that is there already, a NULL that may not be
        assume(False)
