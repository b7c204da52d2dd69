"""What holds for every window that a run prepares."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.etl.changes.rules import Filter, Routes


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What holds for every window of a run. Travels to Spark's workers: no secrets."""

    shape: str = "net"
    """Which steps the sink takes, see `sluice.etl.changes.write_plans`."""
    workers: int = 1
    """How many sessions write side by side, for the shape `groups`."""
    time_zone: str = "UTC"
    """In which TIMESTAMPs are written, for the shapes `file_binlog` and `kafka_binlog`."""
    filters: Filter = field(default_factory=Filter)
    routes: Routes = field(default_factory=Routes)
    ignored_ts: frozenset[int] = frozenset()
    """Commit timestamps of transactions and DDL that don't go downstream. The schema is kept up to date all the same.
    """
    without_rows: frozenset[int] = frozenset()
    """Ids of tables of which no row changes go downstream; DDL about them does."""
