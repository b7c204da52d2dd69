"""The checksum that a server computes: another one for all that isn't the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.etl.downstream import MySQLSession
from sluice.etl.tasks.verify import lines
from sluice.etl.verify.checksum import Checksum, ServerColumn, checksum_columns
from sluice.etl.verify.result import TableResult, VerifySummary
from sluice.etl.verify.tables import ExcludedTable
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import column

COLUMNS = (
    "a varchar(20)",
    "b varchar(20)",
    "t longtext",
    "d double",
    "n decimal(10,2)",
    "at datetime(6)",
    "x varbinary(9)",
)
SAME = "('a', 'b', 't', 1.5, 2.50, '2026-01-01 00:00:00.000001', x'00')"


@pytest.fixture(scope="module")
def server(mariadb_server: MariaDBServer) -> Iterator[MySQLSession]:
    mariadb_server.empty()
    session = MySQLSession(mariadb_server.downstream)
    session.connect()
    session.execute("CREATE DATABASE sums")
    session.execute(f"CREATE TABLE sums.t ({', '.join(COLUMNS)})")
    yield session
    session.close()


def checksum(server: MySQLSession, *rows: str) -> Checksum:
    server.execute("DELETE FROM sums.t")
    for row in rows:
        server.execute(f"INSERT INTO sums.t VALUES {row}")
    columns = [
        ServerColumn(column(n + 1, text), "utf8mb4" if "char" in text or "text" in text else "")
        for n, text in enumerate(COLUMNS)
    ]
    ((count, digest),) = server.query(f"SELECT {checksum_columns(columns)} FROM sums.t")
    return Checksum(int(count), int(digest or 0))


@pytest.mark.parametrize(
    "other",
    [
        "('ab', '', 't', 1.5, 2.50, '2026-01-01 00:00:00.000001', x'00')",
        "('a ', 'b', 't', 1.5, 2.50, '2026-01-01 00:00:00.000001', x'00')",
        "('A', 'b', 't', 1.5, 2.50, '2026-01-01 00:00:00.000001', x'00')",
        "('a', 'b', 'T', 1.5, 2.50, '2026-01-01 00:00:00.000001', x'00')",
        "('a', 'b', 't', 1.5000000000000002, 2.50, '2026-01-01 00:00:00.000001', x'00')",
        "('a', 'b', 't', 1.5, 2.51, '2026-01-01 00:00:00.000001', x'00')",
        "('a', 'b', 't', 1.5, 2.50, '2026-01-01 00:00:00.000002', x'00')",
        "('a', 'b', 't', 1.5, 2.50, '2026-01-01 00:00:00.000001', x'0000')",
        "('a', 'b', 't', 1.5, 2.50, '2026-01-01 00:00:00.000001', NULL)",
        "(NULL, 'b', 't', 1.5, 2.50, '2026-01-01 00:00:00.000001', x'00')",
        "('a', 'b', NULL, 1.5, 2.50, '2026-01-01 00:00:00.000001', x'00')",
        "('a', 'b', 't', NULL, 2.50, '2026-01-01 00:00:00.000001', x'00')",
    ],
)
def test_one_value_that_is_another_makes_another_sum(server: MySQLSession, other: str) -> None:
    assert checksum(server, other) != checksum(server, SAME)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("'ab', 'c'",), ("'a', 'bc'",)),
        (("'a,b', 'c'",), ("'a', 'b,c'",)),
        (("'', NULL",), ("NULL, ''",)),
        (("'N', 'x'",), ("NULL, 'x'",)),
        (("'1', 'a'", "'1', 'b'"), ("'2', 'a'", "'2', 'b'")),  # one change in two rows
        # a row that is there twice is another one twice
        (("'1', '1'", "'1', '1'"), ("'2', '2'", "'2', '2'")),
        (("'1', '1'", "'1', '1'", "'2', '2'"), ("'1', '1'", "'2', '2'", "'2', '2'")),
        (("'1', '2'", "'2', '1'"), ("'1', '1'", "'2', '2'")),
    ],
)
def test_rows_that_only_look_alike_have_other_sums(
    server: MySQLSession, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    sums = [
        checksum(server, *(f"({row}, NULL, NULL, NULL, NULL, NULL)" for row in rows))
        for rows in (one, other)
    ]
    assert sums[0].rows == sums[1].rows and sums[0].digest != sums[1].digest


def test_sums_of_parts_add_up_to_the_whole_in_whatever_order(server: MySQLSession) -> None:
    rows = [
        SAME,
        "('x', NULL, NULL, NULL, NULL, NULL, NULL)",
        "(NULL, 'y', NULL, NULL, NULL, NULL, NULL)",
    ]
    whole = checksum(server, *rows)
    assert checksum(server, *reversed(rows)) == whole
    assert checksum(server, rows[0]) + checksum(server, *rows[1:]) == whole
    assert checksum(server) == Checksum()


def test_text_beyond_the_servers_packets_is_not_taken_for_null(
    server: MySQLSession, mariadb_server: MariaDBServer
) -> None:
    server.execute(
        "CREATE TABLE sums.packets (id INT PRIMARY KEY, v LONGTEXT, w LONGTEXT NOT NULL)"
    )
    columns = [
        ServerColumn(column(2, "v longtext"), "utf8mb4"),
        ServerColumn(column(3, "w longtext"), "utf8mb4", nullable=False),
    ]
    long = "REPEAT('x', 2000000)"
    server.execute(
        f"INSERT INTO sums.packets VALUES (1, NULL, ''), (2, {long}, ''), (3, '', {long}), (4,"
        " '', '')"
    )
    server.commit()
    with mariadb_server.connect() as root, root.cursor() as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with mariadb_server.connect() as connection, connection.cursor() as cursor:
            digests = []
            for number in range(1, 5):
                cursor.execute(
                    f"SELECT {checksum_columns(columns)} FROM sums.packets WHERE id = {number}"
                )
                digests.append(cursor.fetchone()[1])
    finally:
        with mariadb_server.connect() as root, root.cursor() as cursor:
            cursor.execute("SET GLOBAL max_allowed_packet = DEFAULT")
    assert len(set(digests)) == 4


def test_where_nothing_was_compared_both_sides_are_not_equal() -> None:
    left = (ExcludedTable("d.t", "the settings leave it out"),)
    summary = VerifySummary("v1", "done", left_out=left)
    assert not summary.equal
    assert list(lines(summary))[-1].startswith("nothing was compared, 1 table left out")
    equal = VerifySummary("v1", "done", tables=(TableResult("d.t", "d.t", 1),))
    assert equal.equal and not replace(equal, only_downstream=("d.more",)).equal
