"""Reads a downstream's checkpoint without becoming its writer."""

from __future__ import annotations

from etl import server_errors
from etl.downstream import Checkpoint, CheckpointTable, DownstreamError, MySQLSession, SavepointFile
from etl.settings import Downstream, File, Kafka, Target


def read_checkpoint(target: Target, cluster_id: int, *, wait: bool = False) -> Checkpoint | None:
    """Through where the downstream is complete at least; None if nobody has replicated to it yet. `wait`: wait for
    who is about to commit, if the downstream is a database: who commits later has asked for operators' orders later.
    Raises CheckpointError, DownstreamError and OSError when that can't be known.
    """
    match target:
        case Downstream():
            return _from_table(target, cluster_id, wait=wait)
        case File():
            from etl.sinks.file import savepoint_file

            return _from_file(savepoint_file(target, cluster_id))
        case Kafka():
            from etl.sinks.kafka import savepoint_file as kafka_savepoint_file

            return _from_file(kafka_savepoint_file(target, cluster_id))


def _from_file(file: SavepointFile) -> Checkpoint | None:
    found = file.load()
    return found.checkpoint if found and found.checkpoint.commit_ts else None


def read_writer(downstream: Downstream, cluster_id: int) -> str | None:
    """What the session that writes to a database executes now: "" for nothing; None if
    there is no such session, or the server can't tell. Raises DownstreamError.
    """
    session = MySQLSession(downstream)
    try:
        session.connect()
        table = CheckpointTable.of(session, downstream, cluster_id)
        found = table.writer_lock().holder(session)
        return found[1] if found else None
    finally:
        session.close()


def _from_table(downstream: Downstream, cluster_id: int, *, wait: bool) -> Checkpoint | None:
    session = MySQLSession(downstream)
    try:
        session.connect()
        return CheckpointTable.of(session, downstream, cluster_id).load(wait=wait)
    except DownstreamError as error:
        if error.code in (server_errors.UNKNOWN_DATABASE, server_errors.NO_SUCH_TABLE):
            return None
        raise
    finally:
        session.close()
