"""Check whether past windows may be applied to a database.

Its tables have to be as of the range's beginning, and no other process may be replicating there.
"""

from __future__ import annotations

from sluice.etl.changes import server_errors
from sluice.etl.changes.rules import ColumnRuleError, RouteError, with_history_columns
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointTable,
    DownstreamError,
    MySQLSession,
    is_same_server,
    open_session,
)
from sluice.etl.settings import Downstream, Settings
from sluice.etl.verify.errors import ReplayRangeError
from sluice.etl.verify.reapply.window_range import ReplayWindows
from sluice.tidb import tso
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

_COLUMNS = (
    "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)


class JobCheckpointGuard:
    """Admit the checkpoint row of a database in which only this job writes.

    See `sluice.etl.downstream.sinks.sink.CheckpointGuard`.
    """

    def __init__(self, job: str, since: int) -> None:
        self.pipeline = owner_of(job)
        self._since = since

    def check_checkpoint(self, found: Checkpoint | None) -> None:
        """Check that the row is this job's, or exactly at the range's beginning.

        Raises ReplayRangeError.
        """
        if (
            found is not None
            and found.owner != self.pipeline
            and (problem := why_not_at(found, self._since))
        ):
            raise ReplayRangeError(problem)


def owner_of(job: str) -> str:
    """Return the owner that a job writes into the checkpoint row."""
    return f"job {job}"


def why_not_at(found: Checkpoint, since: int) -> str:
    """Return why a database with this checkpoint isn't as of `since` (TSO); "" if it is."""
    if found.commit_ts != since:
        return (
            f"by its checkpoint the database is as of {tso.text(found.commit_ts)}, not as of"
            f" --since {tso.text(since)}: bring it there, or begin where it is"
        )
    if not found.consistent or found.pending is not None or found.shared is not None:
        return f"by its checkpoint changes after {found.commit_ts} are in the database in part"
    return ""


def checkpoint_of_job(target: Downstream, cluster_id: int, job: str) -> Checkpoint | None:
    """Return how far the job is there; None if it has written nothing. Raises DownstreamError."""
    with open_session(target) as session:
        found = _checkpoint(session, target, cluster_id)
        return found if found is not None and found.owner == owner_of(job) else None


def target_problems(
    pipeline: Settings, own: Settings, found: ReplayWindows, since: int
) -> list[str]:
    """Return why the range can't be applied to the database of `own`.

    `own` are the pipeline's settings with another downstream. Nothing is written. Raises
    DownstreamError.
    """
    target = own.downstream
    with open_session(target) as session:
        problems = []
        if pipeline.downstream.type == "mysql" and is_same_server(session, pipeline.downstream):
            problems += _same_server_problems(pipeline, own, found)
        checkpoint = _checkpoint(session, target, found.cluster_id)
        lock = CheckpointTable.from_settings(session, target, found.cluster_id).writer_lock()
        if (holder := lock.holder(session)) is not None:
            problems.append(
                f"another process replicates to {session.address} in connection {holder[0]}: stop"
                " that pipeline, or the job"
            )
        if checkpoint is not None and (problem := why_not_at(checkpoint, since)):
            problems.append(f"{session.address}: {problem}")
        return problems + [
            problem
            for table in found.begun.values()
            if (problem := _why_table_differs(session, own, table, since))
        ]


def target_note(own: Settings, cluster_id: int, since: int) -> str:
    """Return a note on the timestamp of the database. Raises DownstreamError."""
    with open_session(own.downstream) as session:
        if _checkpoint(session, own.downstream, cluster_id) is None:
            return (
                f"{session.address} has no checkpoint, so that its tables are as of"
                f" {tso.text(since)} is taken on trust: a change that meets another row than it"
                " expects stops the job"
            )
    return ""


def _checkpoint(session: MySQLSession, target: Downstream, cluster_id: int) -> Checkpoint | None:
    try:
        return CheckpointTable.from_settings(session, target, cluster_id).load()
    except DownstreamError as error:
        if error.code in (server_errors.UNKNOWN_DATABASE, server_errors.NO_SUCH_TABLE):
            return None
        raise


def _same_server_problems(pipeline: Settings, own: Settings, found: ReplayWindows) -> list[str]:
    """Return what pipeline and job would both write to on the pipeline's own server."""
    problems = []
    places = [
        (folded(s.downstream.checkpoint_schema), folded(s.downstream.checkpoint_table))
        for s in (pipeline, own)
    ]
    if places[0] == places[1]:
        problems.append(
            "this is the server that the pipeline replicates to: give the job a checkpoint of its"
            " own, [downstream] checkpoint-table"
        )
    shared = _databases(pipeline, found) & _databases(own, found)
    if shared:
        problems.append(
            "this is the server that the pipeline replicates to, and both would write to the"
            f" databases {', '.join(sorted(shared))}: send the job's tables to others with"
            " [[route]], or to another server"
        )
    return problems


def _databases(settings: Settings, found: ReplayWindows) -> set[str]:
    """Return the databases downstream that the range's tables go to, in lower case."""
    names = set()
    for table in found.tables.values():
        if settings.filters.wants_table(table.schema_name, table.name):
            names.add(folded(settings.routes.target(table.schema_name, table.name).schema))
    return names


def _why_table_differs(session: MySQLSession, own: Settings, table: Table, since: int) -> str:
    """Return why a table there can't be what it was upstream, "" if it may be."""
    try:
        goal = own.routes.target(table.schema_name, table.name)
        shaped = own.rules.shaped(table)
    except (ColumnRuleError, RouteError) as error:
        return str(error)
    there = {folded(str(name)) for (name,) in session.query(_COLUMNS, (goal.schema, goal.table))}
    name = full_name(goal.schema, goal.table)
    if not there:
        return (
            f"{name} isn't on {session.address}: it has to be there as it was at {tso.text(since)}"
        )
    wanted = {folded(column.name) for column in with_history_columns(shaped).stored_columns}
    if missing := sorted(wanted - there):
        return (
            f"{name} on {session.address} lacks the columns {', '.join(missing)}, which it had at"
            f" {tso.text(since)}"
        )
    return ""
