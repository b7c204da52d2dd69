"""The state that every TiDB of a cluster writes to."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.devstack.tidb.commit_log import CommitLog
from sluice.devstack.tidb.ddl_history import DDLHistory
from sluice.devstack.tidb.oracle import Oracle
from sluice.devstack.tidb.sql import Versions
from sluice.devstack.tidb.store import Store


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """PD's timestamps, TiKV's keys, the DDL jobs that are done, the commits, and the rows.

    The commits are in their order.
    """

    oracle: Oracle
    store: Store
    history: DDLHistory
    commits: CommitLog
    versions: Versions
    """Versions that the SQL port reads."""
