"""Both sides are compared by what their servers compute; what differs is found row by row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.copy.tidb_sql import TidbAddress
from etl.rules import Filter
from tests.embedded.sql_harness import port
from tests.etl.copy.copying import definitions
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.verify.replicas import Replica


@pytest.fixture(scope="module")
def replica(mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """Every table of the recording, with values of every type."""
    mariadb_server.empty()
    with port("bootstrap", region_rows=700) as tidb:
        ts = tidb.recording.labels[-1].ts
        address = TidbAddress("127.0.0.1", tidb.server.port)
        folder = tmp_path_factory.mktemp("verify")
        made = Replica(address, definitions(ts), mariadb_server, folder, Filter(do_schemas=("types",)))
        made.copy()
        yield made


def test_a_replica_of_every_type_is_equal_by_checksums_alone(replica: Replica) -> None:
    found = replica.compare()
    assert {name: one.found.apart for name, one in found.items() if one.found.apart} == {}
    read = {name: one.found.by_rows for name, one in found.items() if one.found.by_rows}
    assert read == {"types.decs": 6}, "servers print the greatest and the least DOUBLE in two ways: rows are read"
    assert len(found) > 30 and sum(one.found.rows for one in found.values()) > 80
