"""A TiDB as the target of a bootstrap: LOAD DATA would commit there by itself, so rows go as
statements, once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.rules import Filter
from sluice.etl.changes.rules.filters import NameRule
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.worker import make_loads
from sluice.etl.downstream import DownstreamError
from tests.etl.copy import small_story
from tests.etl.copy.copying import CLUSTER, RECORDING, definitions, settings_of
from tests.etl.copy.dump_writer import Way, content
from tests.etl.copy.killed_copy import Forks, forking
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.snapshots import differences
from tests.etl.tidb_stand_in import TiDBStandIn


@pytest.fixture
def mariadb(own_mariadb: MariaDBServer) -> MariaDBServer:
    return own_mariadb


@pytest.fixture
def tidb(mariadb: MariaDBServer) -> Iterator[TiDBStandIn]:
    stand_in = TiDBStandIn(mariadb)
    yield stand_in
    stand_in.close()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forking() as opened:
        yield opened


@pytest.mark.slow
def test_a_dump_of_every_type_arrives_in_a_tidb(
    mariadb: MariaDBServer, tidb: TiDBStandIn, tmp_path: Path
) -> None:
    source = DumplingFolder.open(str(RECORDING / "dump-sql"))
    server: Any = tidb
    # The MariaDB behind the stand-in has no primary keys on computed columns, a TiDB has.
    filters = Filter(ignored_tables=(NameRule("types", "gpk", "types.gpk"),))
    made = BootstrapPlanner(
        settings_of(server, tmp_path, filters), source, definitions(source.position), CLUSTER
    )
    made.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
    found = differences(RECORDING, "dump_sql", mariadb)
    assert [line for line in found if not line.startswith("types.gpk:")] == []
    assert not [
        statement for statement in tidb.seen.statements if statement.startswith("LOAD DATA")
    ]


@pytest.mark.slow
def test_killed_between_statements_into_a_tidb_it_goes_on(
    mariadb: MariaDBServer, tidb: TiDBStandIn, tmp_path: Path, forks: Forks
) -> None:
    place = small_story.write_dump(tmp_path / "dump")
    port = tidb.downstream.port
    steps = forks.through(port, tmp_path / "whole", place)
    small_story.check(mariadb)
    for at in range(5, steps, 11):
        mariadb.empty()
        told = forks.run(port, tmp_path / str(at), place, at)
        assert "killed" in told or at > steps - 10, told
        again = forks.run(port, tmp_path / str(at), place, 0)
        assert "steps" in again or "is done: its result" in again["failed"], again
        small_story.check(mariadb, tidied="steps" in again)


def test_a_chunk_that_is_too_large_for_its_transactions_is_told_with_the_hint(
    mariadb: MariaDBServer, tidb: TiDBStandIn, tmp_path: Path
) -> None:
    url = small_story.write_dump(tmp_path / "dump")
    many = content("log", [("v", "int", False)], [(b"123456789",)] * 300, Way())
    (tmp_path / "dump" / "d.log.2.sql").write_bytes(many)
    source = small_story.open_source(url)
    server: Any = tidb
    made = BootstrapPlanner(settings_of(server, tmp_path), source, small_story.definitions(), 7)
    tidb.seen.transaction_bytes = 2_000
    with pytest.raises(DownstreamError, match=r"txn-total-size-limit.*smaller files"):
        made.run(lambda chunk, table: make_loads(source.spec(), chunk, table))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM tidb_binlog.checkpoint")
        assert cursor.fetchone() == (0,)
        cursor.execute("SELECT COUNT(*) FROM d.log WHERE v = 123456789")
        assert cursor.fetchone() == (0,)
