"""Nothing is found in a replica; whatever is wrong in it is found, and nothing else.

And the SQL that a repair prints makes it right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from sluice.etl.changes.rules import Filter
from sluice.etl.copy.tidb_sql import TidbAddress
from sluice.etl.downstream import MySQLSession
from sluice.etl.verify.repair import table_repair
from sluice.etl.verify.repair_sql import RepairStatements, repair_script
from sluice.etl.verify.row_diff import RowDiff
from tests.devstack.sql_harness import port
from tests.etl.copy.copying import CLUSTER, definitions
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.verify.corrupting import Damager, damaged
from tests.etl.verify.replicas import Replica


@pytest.fixture(scope="module")
def replica(
    mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replica]:
    """Every table of the recording, with values of every type."""
    mariadb_server.empty()
    with port("bootstrap", region_rows=700) as tidb:
        ts = tidb.recording.labels[-1].ts
        address = TidbAddress("127.0.0.1", tidb.server.port)
        folder = tmp_path_factory.mktemp("corruptions")
        made = Replica(
            address, definitions(ts), mariadb_server, folder, Filter(do_schemas=("types",))
        )
        made.copy()
        yield made


def found(replica: Replica) -> dict[str, RowDiff]:
    """The rows that differ, by table."""
    return {
        name: one.found.apart
        for name, one in replica.compare().items()
        if one.found.apart is not None
    }


def repaired(replica: Replica, wrong: dict[str, RowDiff]) -> tuple[int, int]:
    """Run what a repair prints; how many rows it says were repaired, and should have been."""
    session = MySQLSession(replica.server.downstream)
    session.connect()
    try:
        repairs = [
            table_repair(session, one, name, replica.known.ts) for name, one in wrong.items()
        ]
    finally:
        session.close()
    return run(replica, repairs)


def run(replica: Replica, repairs: list[RepairStatements]) -> tuple[int, int]:
    script = repair_script(replica.known.ts, ("`tidb_binlog`.`checkpoint`", CLUSTER), repairs)
    last: tuple[Any, ...] = ()
    with replica.server.connect() as connection, connection.cursor() as cursor:
        for statement in script:
            if not statement.startswith(b"-- "):
                cursor.execute(statement.rstrip(b";"))
                last = cursor.fetchone() or last
        connection.commit()
    return int(last[0]), int(last[1])


def tried(replica: Replica, seed: int, count: int) -> int:
    """Damage, find, repair; how many rows were wrong."""
    damager = Damager(replica.server, seed, ("types",))
    try:
        before = damager.dump()
        damager.damage(count)
        expected = {name: (come, gone) for name, come, gone in damaged(before, damager.dump())}
        wrong = found(replica)
        rows = {name: (one.come.num_rows, one.gone.num_rows) for name, one in wrong.items()}
        unlike = {
            n: (rows.get(n), expected.get(n))
            for n in rows | expected
            if rows.get(n) != expected.get(n)
        }
        assert unlike == {}, (seed, unlike, [wrong.get(name) for name in unlike])
        written, wanted = repaired(replica, wrong)
        left = {name: (come, gone) for name, come, gone in damaged(before, damager.dump())}
        unwritable = [name for name, one in wrong.items() if name in left]
        assert (written, left) == (wanted, {}), (seed, unwritable)
        return sum(max(come, gone) for come, gone in expected.values())
    finally:
        damager.close()


@pytest.mark.slow
def test_a_replica_of_every_type_is_equal_by_checksums_alone(replica: Replica) -> None:
    found = replica.compare()
    assert {name: one.found.apart for name, one in found.items() if one.found.apart} == {}
    read = {name: one.found.by_rows for name, one in found.items() if one.found.by_rows}
    spelled = {"types.strs": 12} if replica.server.dialect.has_json_type else {}
    assert read == {"types.decs": 6} | spelled, (
        "the greatest and the least DOUBLE, and MySQL's JSON, are written in two ways"
    )
    assert len(found) > 30 and sum(one.found.rows for one in found.values()) > 80


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_corruption_is_found_and_nothing_else_and_the_printed_sql_makes_it_right(
    replica: Replica, seed: int
) -> None:
    assert tried(replica, seed, 40) > 20
    assert found(replica) == {}


@pytest.mark.slow
def test_a_row_that_changed_since_stays_as_it_is_and_the_counts_tell(replica: Replica) -> None:
    with replica.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE types.pk_neg SET v = -77701 LIMIT 2")
        wrong = found(replica)
        assert {name: one.count for name, one in wrong.items()} == {"types.pk_neg": 2}
        cursor.execute("UPDATE types.pk_neg SET v = -77702 WHERE v = -77701 LIMIT 1")
        with pytest.raises(pymysql.IntegrityError, match="Duplicate entry"):
            repaired(replica, wrong)
        written, wanted = repaired(replica, found(replica))
        assert written == wanted
    assert found(replica) == {}
