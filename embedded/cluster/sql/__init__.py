"""The stand-in TiDB's SQL port: what a recording holds at a timestamp, read with a MySQL client.

It understands what tools send that read a TiDB at a timestamp (`tidb_snapshot`, key ranges, `_tidb_rowid`,
`TABLESAMPLE REGIONS()`, `information_schema`), prints values as TiDB does, and refuses with TiDB's error numbers.
It writes nothing.
"""

from embedded.cluster.sql.cluster import ClusterState
from embedded.cluster.sql.server import SQLServer
from embedded.cluster.sql.versions import Versions

__all__ = ["ClusterState", "SQLServer", "Versions"]
