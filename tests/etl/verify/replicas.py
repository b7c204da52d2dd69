"""A stand-in TiDB at a timestamp, a MariaDB that is its replica, and both compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sluice.etl.changes.rules import Filter
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.tidb_sql import TidbAddress, TidbSql
from sluice.etl.copy.worker import make_loads
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.settings import Settings
from sluice.etl.verify.downstream_endpoint import DownstreamEndpoint
from sluice.etl.verify.table_compare import TableComparer, TableComparison
from sluice.etl.verify.tables import compared_tables
from sluice.etl.verify.upstream_endpoint import UpstreamEndpoint
from tests.etl.copy.copying import CLUSTER, settings_of
from tests.etl.mariadb_fixture import MariaDBServer


class Replica:
    """`known`: the upstream's schema at its timestamp."""

    def __init__(
        self, address: TidbAddress, known: SourceSchema, server: MariaDBServer, folder: Path,
        filters: Filter | None = None,
    ) -> None:  # fmt: skip
        self.address, self.known, self.server = address, known, server
        self.settings: Settings = settings_of(server, folder, filters)

    def copy(self) -> None:
        """Have the downstream be what the upstream is."""
        source = TidbSql(self.address, self.known.ts)
        copy = BootstrapPlanner(self.settings, source, self.known, CLUSTER)
        assert not copy.plan().problems
        copy.run(lambda chunk, table: make_loads(source.spec(), chunk, table))

    def compare(
        self, wanted: Iterable[str] | None = None, sessions: int = 2
    ) -> dict[str, TableComparison]:
        """What becomes of each table that can be compared, by full name."""
        session = MySQLSession(self.server.downstream)
        session.connect()
        try:
            tables, left = compared_tables(self.settings, self.known, session, wanted)
        finally:
            session.close()
        assert not [one for one in left if one.is_fault], left
        with ConsistentReader.open(self.server.downstream, CLUSTER, sessions) as snapshot:
            assert snapshot.checkpoint.commit_ts == self.known.ts
            down = DownstreamEndpoint(snapshot, "test")
            up = UpstreamEndpoint(self.address, self.known.ts, sessions)
            said = TableComparer(up, down).run(tables, lambda: True)
            return {one.table.full_name: one for one in said if isinstance(one, TableComparison)}
