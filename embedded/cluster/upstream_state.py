"""What every TiDB of a cluster writes to."""

from __future__ import annotations

from dataclasses import dataclass

from embedded.cluster.commit_log import CommitLog
from embedded.cluster.ddl_history import DDLHistory
from embedded.cluster.oracle import Oracle
from embedded.cluster.sql import Versions
from embedded.cluster.store import Store


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """PD's timestamps, TiKV's keys, the DDL jobs that are done, the commits in their order, and the rows."""

    oracle: Oracle
    store: Store
    history: DDLHistory
    commits: CommitLog
    versions: Versions
    """What the SQL port reads."""
