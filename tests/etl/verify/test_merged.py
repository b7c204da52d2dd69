"""Tables that are merged downstream are compared as one: all their rows, of every source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.rules import Route, Routes
from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.tidb_session import TidbAddress
from sluice.etl.verify import VerifyError, VerifySummary, table_compare
from sluice.etl.verify import range_compare as comparing
from sluice.etl.verify.live_rows import open_live_rows
from sluice.etl.verify.repair import create_repair
from sluice.etl.verify.result import TableResult
from sluice.etl.verify.run import KIND
from sluice.tidb.schema import Schema, Table
from tests.etl.copy.copying import CLUSTER
from tests.etl.copy.given_rows import NOW, serving_all
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table
from tests.etl.verify.replicas import Replica

ONE = table(21, "orders_1", "id int", "v varchar(40)", primary="id", clustered=True)
SAME = table(26, "orders_6", "id int", "v varchar(40)", primary="id", clustered=True)
"""With the keys of ONE."""
TWO = table(22, "orders_2", "id int", "v varchar(40)", primary="id", clustered=True)
OTHER = table(23, "orders_3", "id int", "v varchar(41)", "w int", primary="id", clustered=True)
ALONE = table(24, "alone", "id int", "v varchar(40)", primary="id", clustered=True)
SPELLED = table(25, "orders_5", "ID int", "V varchar(40)", primary="ID", clustered=True)
"""As ONE, with names in other letters."""
SCHEMA = ONE.schema_name
MERGED = f"{SCHEMA}.orders"
RULE = Route(SCHEMA, "orders_*", SCHEMA, "orders", "the rule about orders")


def rows(first: int, count: int) -> list[list[Any]]:
    return [[n, f"v{n}".encode()] for n in range(first, first + count)]


@contextlib.contextmanager
def merged(
    server: MariaDBServer, folder: Path, *tables: Table, rule: Route = RULE, copies: bool = True
) -> Iterator[Replica]:
    """The tables are copied, unless `copies` is False."""
    schema = Schema(ONE.schema_id, SCHEMA, "utf8mb4", "utf8mb4_bin")
    held = {
        ONE.id: rows(0, 150),
        SAME.id: rows(0, 150),
        TWO.id: rows(1000, 150),
        SPELLED.id: rows(1000, 150),
        OTHER.id: [],
        ALONE.id: rows(0, 9),
    }
    with serving_all(tables, held, region_rows=50) as address:
        made = Replica(address, SourceSchema(NOW - 1, 5, (schema,), tables), server, folder)
        made.settings = replace(made.settings, routes=Routes((rule,)))
        if copies:
            made.copy()
        yield made


def ran(server: MariaDBServer, statements: Sequence[str]) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            assert cursor.execute(statement)


@pytest.mark.slow
def test_merged_tables_are_compared_as_one_and_what_differs_is_found_whichever_it_is_of(
    mariadb: MariaDBServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_compare, "RANGE_BYTES", 4096)
    monkeypatch.setattr(comparing, "ROWS_PER_READ", 10)
    with merged(mariadb, tmp_path, ONE, TWO, ALONE) as replica:
        found = replica.compare()
        assert {name: (one.found.rows, one.found.apart) for name, one in found.items()} == {
            ONE.full_name: (300, None), ALONE.full_name: (9, None),
        }  # fmt: skip
        only_one_is_asked_for = replica.compare([TWO.full_name])
        assert [one.full_name for one in only_one_is_asked_for[ONE.full_name].table.sources] == [
            ONE.full_name, TWO.full_name,
        ]  # fmt: skip
        ran(
            mariadb,
            [
                f"UPDATE {MERGED} SET v = 'V7' WHERE id = 7",
                f"DELETE FROM {MERGED} WHERE id = 1003",
                f"INSERT INTO {MERGED} VALUES (500, 'nobody''s')",
            ],
        )
        apart = replica.compare()[ONE.full_name].found.apart
        assert apart is not None
        assert sorted(apart.come["id"].to_pylist()) == [7, 1003] and sorted(
            apart.gone["id"].to_pylist()
        ) == [7, 500]


@dataclass(frozen=True)
class Known:
    """The stand-in as continuous verification asks it."""

    replica: Replica

    @property
    def address(self) -> TidbAddress:
        return self.replica.address

    def definitions(self, ts: int) -> SourceSchema:
        return self.replica.known


@pytest.mark.slow
def test_rows_of_merged_tables_are_compared_all_the_time_whichever_of_them_was_changed(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with merged(mariadb, tmp_path, ONE, SPELLED, ALONE) as replica:
        ran(
            mariadb,
            [
                f"UPDATE {MERGED} SET v = 'V7' WHERE id = 7",
                f"DELETE FROM {MERGED} WHERE id = 1003",
                f"INSERT INTO {MERGED} VALUES (500, 'nobody''s')",
            ],
        )
        with open_live_rows(replica.settings, CLUSTER, Known(replica), 10) as rows:
            assert {i: t.full_name for i, t in rows.tables.items()} == {
                ONE.id: ONE.full_name, SPELLED.id: ONE.full_name, ALONE.id: ALONE.full_name,
            }  # fmt: skip
            first = rows.tables[SPELLED.id]
            assert not rows.compare(first, "`ID` BETWEEN 1004 AND 1010").apart.count
            apart = rows.compare(first, "").apart
            assert sorted(apart.come["id"].to_pylist()) == [7, 1003] and sorted(
                apart.gone["id"].to_pylist()
            ) == [
                7,
                500,
            ]
            key = range_key(first)
            assert rows.key_behind(SPELLED, key, (None, None), 10) == ["1010"], (
                "as the table was at the checkpoint"
            )


@pytest.mark.slow
def test_merged_tables_with_other_columns_are_not_compared_and_named(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with merged(mariadb, tmp_path, ONE) as replica:
        assert list(replica.compare()) == [ONE.full_name]
        replica.known = replace(replica.known, tables=(ONE, OTHER))
        assert replica.compare() == {}


def test_a_job_that_repairs_merged_tables_is_refused_with_the_hint(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    replica = Replica(None, SourceSchema(NOW - 1, 5, (), ()), mariadb, tmp_path)  # type: ignore[arg-type]
    settings = replace(
        replica.settings,
        routes=Routes((RULE,)),
        upstream=replace(replica.settings.upstream, sql_host="t"),
    )
    wrong = TableResult(ONE.full_name, MERGED, NOW, 300, differences=1)
    with pytest.raises(VerifyError, match="merged with other tables") as refused:
        create_repair(
            settings, VerifySummary(f"{KIND}-1", "done", "upstream", NOW, 0, 1.0, (wrong,)), "test"
        )
    assert "verify --repair" in refused.value.hint
