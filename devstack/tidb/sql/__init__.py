"""The stand-in TiDB's SQL port: what a recording holds at a timestamp, read with a MySQL client.

It understands what tools send that read a TiDB at a timestamp (`tidb_snapshot`, key ranges,
`_tidb_rowid`, `TABLESAMPLE REGIONS()`, `information_schema`), prints values as TiDB does, and
refuses with TiDB's error numbers. Once the recording has been played it takes INSERT, UPDATE and
DELETE, which go to the pumps as binlogs.
"""

from sluice.devstack.tidb.sql.server import SQLServer
from sluice.devstack.tidb.sql.system_tables import ClusterState
from sluice.devstack.tidb.sql.versions import Versions

__all__ = ["ClusterState", "SQLServer", "Versions"]
