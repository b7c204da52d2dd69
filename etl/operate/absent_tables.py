"""Find tables that are to be replicated and aren't downstream: nobody copied them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluice.errors import FAIL, OK, WARN, CheckResult
from sluice.etl.copy.copy_source_cluster import SourceCluster
from sluice.etl.display_units import counted
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.sinks import read_checkpoint
from sluice.etl.history.snapshots.downstream_catalog import read_downstream_tables
from sluice.etl.settings import Downstream, Settings
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import abbreviate, argument

__all__ = ["absent_tables", "check_tables"]

_MAX_SHOWN = 5


def check_tables(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether all tables of the upstream that are to be replicated are downstream.

    They are those at the checkpoint; without one, those where replication would begin. Raises
    CopyError, the clients' errors, DownstreamError, CheckpointError, RouteError, OSError.
    """
    target = settings.target
    if not isinstance(target, Downstream):
        return
    with SourceCluster.connect(settings.upstream) as cluster:
        checkpoint = read_checkpoint(target, cluster.pd.cluster_id)
        initial = settings.upstream.initial_commit_ts
        at = checkpoint.commit_ts if checkpoint is not None else initial
        if at == 0:
            yield CheckResult("tables", OK, "replication begins with the first DDL of all")
            return
        tables = cluster.definitions(at if at > 0 else cluster.pd.tso()).of_users().tables
    wanted = [
        table
        for table in tables
        if table.is_base_table and settings.filters.wants_table(table.schema_name, table.name)
    ]
    absent = absent_tables(settings, target, wanted)
    if not wanted:
        yield CheckResult("tables", OK, "the upstream has no table that is to be replicated")
    elif absent:
        # A new pipeline is checked before its copy: nothing can stop at a row yet.
        has_begun = checkpoint is not None or settings.open_relay().last() is not None
        yield CheckResult(
            "tables",
            FAIL if has_begun else WARN,
            f"{len(absent):,} of {counted(len(wanted), 'table')} of the upstream aren't downstream:"
            f" {abbreviate(absent, _MAX_SHOWN, kind='tables')}. Applying stops at their first row",
            copying_hint(absent, is_all=len(absent) == len(wanted)),
        )
    else:
        yield CheckResult(
            "tables", OK, f"all {counted(len(wanted), 'table')} of the upstream are downstream"
        )


def absent_tables(settings: Settings, target: Downstream, wanted: Sequence[Table]) -> list[str]:
    """Return the full names of those of the tables that aren't downstream.

    Raises RouteError, DownstreamError.
    """
    places = {
        table.full_name: settings.routes.target(table.schema_name, table.name) for table in wanted
    }
    session = MySQLSession(target)
    session.connect()
    try:
        there = read_downstream_tables(session, {place.schema for place in places.values()})
    finally:
        session.close()
    return [
        name
        for name, place in places.items()
        if (folded(place.schema), folded(place.table)) not in there
    ]


def copying_hint(absent: Sequence[str], *, is_all: bool) -> str:
    """Return the command that brings tables with their rows."""
    if is_all:
        return (
            "`sluice bootstrap --from tidb://` copies all of them; if the pipeline has a checkpoint"
            " already, `sluice backfill --table '*.*'`"
        )
    return f"`sluice backfill --table {argument(absent[0])}` copies one"
