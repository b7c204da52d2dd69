"""Whether past windows may be applied to a database: its tables have to be as of the range's beginning, and nobody else
may be replicating there.
"""

from __future__ import annotations

from etl import server_errors
from etl.downstream import (
    Checkpoint,
    CheckpointTable,
    DownstreamError,
    MySQLSession,
    connected,
    is_same_server,
)
from etl.reapply.errors import ReapplyError
from etl.reapply.window_range import WindowRange
from etl.rules import RouteError
from etl.settings import Downstream, Settings
from upstream import tso
from upstream.folded import folded
from upstream.schema import Table
from upstream.table_name import full_name

_COLUMNS = "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"


class JobKeeper:
    """Admits the checkpoint row of a database in which only this job writes, see `etl.sinks.sink.Keeper`."""

    def __init__(self, job: str, since: int) -> None:
        self.pipeline = owner_of(job)
        self._since = since

    def admit(self, found: Checkpoint | None) -> None:
        """Raises ReapplyError if the row is neither this job's nor exactly at the range's beginning."""
        if found is not None and found.owner != self.pipeline and (problem := not_as_of(found, self._since)):
            raise ReapplyError(problem)


def owner_of(job: str) -> str:
    """What the checkpoint row says of who wrote it."""
    return f"job {job}"


def not_as_of(found: Checkpoint, since: int) -> str:
    """Why a database with this checkpoint isn't as of `since` (TSO); "" if it is."""
    if found.commit_ts != since:
        return (
            f"by its checkpoint the database is as of {tso.text(found.commit_ts)}, not as of --since {tso.text(since)}:"
            " bring it there, or begin where it is"
        )
    if not found.consistent or found.pending is not None:
        return f"by its checkpoint changes after {found.commit_ts} are in the database in part"
    return ""


def begun(target: Downstream, cluster_id: int, job: str) -> Checkpoint | None:
    """How far the job is there; None if it has written nothing. Raises DownstreamError."""
    with connected(target) as session:
        found = _checkpoint(session, target, cluster_id)
        return found if found is not None and found.owner == owner_of(job) else None


def problems(pipeline: Settings, own: Settings, found: WindowRange, since: int) -> list[str]:
    """Why the range can't be applied to the database of `own`, which are the pipeline's settings with another
    downstream; nothing is written. Raises DownstreamError.
    """
    target = own.downstream
    with connected(target) as session:
        told = []
        if pipeline.downstream.type == "mysql" and is_same_server(session, pipeline.downstream):
            told += _beside(pipeline, own, found)
        checkpoint = _checkpoint(session, target, found.cluster_id)
        lock = CheckpointTable.of(session, target, found.cluster_id).writer_lock()
        if (holder := lock.holder(session)) is not None:
            told.append(
                f"somebody replicates to {session.address} in connection {holder[0]}: stop that pipeline, or the job"
            )
        if checkpoint is not None and (problem := not_as_of(checkpoint, since)):
            told.append(f"{session.address}: {problem}")
        return told + [problem for table in found.begun.values() if (problem := _differs(session, own, table, since))]


def note(own: Settings, cluster_id: int, since: int) -> str:
    """What is to be said of as of when the database is. Raises DownstreamError."""
    with connected(own.downstream) as session:
        if _checkpoint(session, own.downstream, cluster_id) is None:
            return (
                f"{session.address} has no checkpoint, so that its tables are as of {tso.text(since)} is taken on"
                " trust: a change that meets another row than it expects stops the job"
            )
    return ""


def _checkpoint(session: MySQLSession, target: Downstream, cluster_id: int) -> Checkpoint | None:
    try:
        return CheckpointTable.of(session, target, cluster_id).load()
    except DownstreamError as error:
        if error.code in (server_errors.UNKNOWN_DATABASE, server_errors.NO_SUCH_TABLE):
            return None
        raise


def _beside(pipeline: Settings, own: Settings, found: WindowRange) -> list[str]:
    """On the pipeline's own server: what both would write to."""
    told = []
    places = [(folded(s.downstream.checkpoint_schema), folded(s.downstream.checkpoint_table)) for s in (pipeline, own)]
    if places[0] == places[1]:
        told.append(
            "this is the server that the pipeline replicates to: give the job a checkpoint of its own, [downstream]"
            " checkpoint-table"
        )
    shared = _databases(pipeline, found) & _databases(own, found)
    if shared:
        told.append(
            "this is the server that the pipeline replicates to, and both would write to the databases"
            f" {', '.join(sorted(shared))}: send the job's tables to others with [[route]], or to another server"
        )
    return told


def _databases(settings: Settings, found: WindowRange) -> set[str]:
    """The databases downstream that the range's tables go to, in lower case."""
    names = set()
    for table in found.tables.values():
        if settings.filters.wants_table(table.schema_name, table.name):
            names.add(folded(settings.routes.target(table.schema_name, table.name).schema))
    return names


def _differs(session: MySQLSession, own: Settings, table: Table, since: int) -> str:
    """Why a table there can't be what it was upstream, "" if it may be."""
    try:
        goal = own.routes.target(table.schema_name, table.name)
    except RouteError as error:
        return str(error)
    there = {folded(str(name)) for (name,) in session.query(_COLUMNS, (goal.schema, goal.table))}
    name = full_name(goal.schema, goal.table)
    if not there:
        return f"{name} isn't on {session.address}: it has to be there as it was at {tso.text(since)}"
    wanted = {folded(column.name) for column in table.stored_columns}
    if missing := sorted(wanted - there):
        return f"{name} on {session.address} lacks the columns {', '.join(missing)}, which it had at {tso.text(since)}"
    return ""
