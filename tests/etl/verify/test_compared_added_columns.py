"""A table with columns that a rule adds: the downstream computes them, the upstream is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.preflight import downstream_table_of
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify.live_rows import open_live_rows
from sluice.etl.verify.tables import compared_tables
from sluice.tidb.schema import Schema, Table
from tests.etl.apply.added_columns import expressions
from tests.etl.copy.copying import CLUSTER
from tests.etl.copy.given_rows import NOW, serving_all
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.verify.replicas import Replica
from tests.examples import examples

PEOPLE = table(
    21, "people", "id int", "first varchar(20)", "last char(9)", "n int", "note text",
    "price decimal(8,2)", "day date", "at datetime(3)", "kind enum('old','new one')", primary="id",
)  # fmt: skip
ADD = {
    "full": "concat(first, ' ', last)",
    "source": "'eu'",
    "total": {"value": "price * n", "type": "DECIMAL(30,4)"},
    "digest": "concat_ws('|', note, kind, day, at, n)",
    "on": "date(at)",
}


def row(number: int) -> list[Any]:
    if number % 9 == 0:
        return [number, *[None] * 8]
    return [
        number, f"É{number}".encode(), b"b" if number % 2 else b"", number - 50, b"n" * number,
        f"{number}.50", f"2024-02-{number % 28 + 1:02}", f"1999-12-31 23:59:{number % 60:02}.125",
        "old" if number % 3 else "new one",
    ]  # fmt: skip


@contextlib.contextmanager
def replica(
    server: MariaDBServer,
    folder: Path,
    add: dict[str, Any],
    rows: Sequence[list[Any]] | None = None,
) -> Iterator[Replica]:
    schema = Schema(PEOPLE.schema_id, "d", "utf8mb4", "utf8mb4_bin")
    filters = parse_filter({"columns": [{"tables": ["d.people"], "add": add}]})[0]
    known = SourceSchema(NOW - 1, 5, (schema,), (PEOPLE,))
    held = {PEOPLE.id: [row(n) for n in range(150)] if rows is None else rows}
    with serving_all([PEOPLE], held, region_rows=50) as address:
        made = Replica(address, known, server, folder, filters)
        made.copy()
        yield made


def differing(made: Replica) -> int:
    apart = made.compare()["d.people"].found.apart
    return 0 if apart is None else apart.count


def run(server: MariaDBServer, statement: str) -> tuple[tuple[Any, ...], ...]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        found = cursor.fetchall()
        connection.commit()
        return tuple(found)


def test_added_columns_are_made_by_the_copy_and_compared(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path, ADD) as made:
        names = ", ".join(f"`{name}`" for name in ADD)
        assert run(mariadb, f"SELECT {names} FROM d.people WHERE id IN (0, 1)") == (
            (None, "eu", None, "", None),
            ("É1 b", "eu", *run(mariadb, "SELECT CAST(-73.5 AS DECIMAL(30,4))")[0],
             "n|old|2024-02-02|1999-12-31 23:59:01.125|-49",
             run(mariadb, "SELECT DATE '1999-12-31'")[0][0]),
        )  # fmt: skip
        compared = made.compare()["d.people"]
        assert (compared.found.rows, compared.found.apart) == (150, None)
        run(mariadb, "UPDATE d.people SET first = 'x' WHERE id = 12")
        assert differing(made) == 1
        run(mariadb, "UPDATE d.people SET first = 'É12' WHERE id = 12")
        assert differing(made) == 0
        run(
            mariadb,
            "ALTER TABLE d.people MODIFY source VARCHAR(2) GENERATED ALWAYS AS ('us') STORED",
        )
        assert differing(made) == 150


def test_rows_that_are_looked_at_all_the_time_are_with_these_columns(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path, ADD) as made:

        class Upstream:
            address = made.address

            def definitions(self, ts: int) -> SourceSchema:
                return made.known

        def apart() -> int:
            with open_live_rows(made.settings, CLUSTER, Upstream(), 1.0) as live:
                found = live.compare(live.tables[PEOPLE.id], "id < 30")
            assert found.rows == 30
            return found.apart.count

        assert apart() == 0
        run(
            mariadb,
            "ALTER TABLE d.people MODIFY source VARCHAR(2) GENERATED ALWAYS AS ('us') STORED",
        )
        assert apart() == 30


def test_a_downstream_without_the_column_is_a_fault_by_its_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with replica(mariadb, tmp_path, ADD) as made:
        run(mariadb, "ALTER TABLE d.people DROP COLUMN full")
        session = MySQLSession(mariadb.downstream)
        session.connect()
        try:
            tables, left = compared_tables(made.settings, made.known, session)
        finally:
            session.close()
        (one,) = left
        assert not tables and one.is_fault
        assert one.why == "d.people has no column full, which [[filter.columns]] adds"
        why = downstream_table_of(made.settings, PEOPLE)
        assert isinstance(why, str) and "adds columns" in why


def drawn_rows(data: st.DataObject) -> list[list[Any]]:
    def some(*values: Any) -> st.SearchStrategy[Any]:
        return st.sampled_from([None, *values])

    columns = (
        some(b"", b"a", "Éñ b ".encode(), b"x'y", "\U0001f600\\".encode()),
        some(b"", b"Z", "é".encode()),
        some(0, -7, 2**31 - 1),
        some(b"", b"n" * 300, "Ñ,|".encode()),
        some("0.00", "-0.05", "999999.99"),
        some("2024-02-29", "1000-01-01"),
        some("1999-12-31 23:59:59.999", "2000-01-01 00:00:00.000"),
        some("old", "new one"),
    )
    return [[n, *map(data.draw, columns)] for n in range(data.draw(st.integers(1, 8)))]


def read_by(of: Table) -> list[Any]:
    return [column for column in of.columns if column.name != "id"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_the_downstream_computes_is_what_the_upstream_does(
    mariadb: MariaDBServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    some = st.lists(expressions(PEOPLE, read_by(PEOPLE)), min_size=1, max_size=4)

    @tried(
        deadline=None,
        max_examples=examples(15),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        mariadb.empty()
        add = {f"n{number}": text for number, text in enumerate(data.draw(some))}
        with replica(mariadb, tmp_path_factory.mktemp("r"), add, drawn_rows(data)) as made:
            assert differing(made) == 0, add
            computed = ", ".join(f"({text})" for text in add.values())
            held = run(mariadb, f"SELECT {', '.join(add)} FROM d.people ORDER BY id")
            assert held == run(mariadb, f"SELECT {computed} FROM d.people ORDER BY id")

    check()
