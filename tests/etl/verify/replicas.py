"""A stand-in TiDB at a timestamp, a MariaDB that is its replica, and both compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from etl.base.downstream_reader import DownstreamSnapshot
from etl.copy.bootstrap import Bootstrap
from etl.copy.definitions import Definitions
from etl.copy.tidb_sql import TidbAddress, TidbSql
from etl.copy.worker import make_loads
from etl.downstream import MySQLSession
from etl.rules import Filter
from etl.settings import Settings
from etl.verify.comparison import Compared, Comparison
from etl.verify.downstream_side import DownstreamSide
from etl.verify.tables import compared_tables
from etl.verify.upstream_side import UpstreamSide
from tests.etl.copy.copying import CLUSTER, settings_of
from tests.etl.mariadb_fixture import MariaDBServer


class Replica:
    """`known`: the upstream's schema at its timestamp."""

    def __init__(
        self, address: TidbAddress, known: Definitions, server: MariaDBServer, folder: Path,
        filters: Filter | None = None,
    ) -> None:  # fmt: skip
        self.address, self.known, self.server = address, known, server
        self.settings: Settings = settings_of(server, folder, filters)

    def copy(self) -> None:
        """Have the downstream be what the upstream is."""
        source = TidbSql(self.address, self.known.ts)
        copy = Bootstrap(self.settings, source, self.known, CLUSTER)
        assert not copy.plan().problems
        copy.run(lambda chunk, table: make_loads(source.spec(), chunk, table))

    def compare(self, wanted: Iterable[str] | None = None, sessions: int = 2) -> dict[str, Compared]:
        """What becomes of each table that can be compared, by full name."""
        session = MySQLSession(self.server.downstream)
        session.connect()
        try:
            tables, left = compared_tables(self.settings, self.known, session, wanted)
        finally:
            session.close()
        assert not [one for one in left if one.is_fault], left
        with DownstreamSnapshot.open(self.server.downstream, CLUSTER, sessions) as snapshot:
            assert snapshot.checkpoint.commit_ts == self.known.ts
            down = DownstreamSide(snapshot, "test")
            up = UpstreamSide(self.address, self.known.ts, sessions)
            said = Comparison(up, down).run(tables, lambda: True)
            return {one.table.full_name: one for one in said if isinstance(one, Compared)}
