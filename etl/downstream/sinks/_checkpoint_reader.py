"""Reads a downstream's checkpoint without becoming its writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from sluice.etl.changes import server_errors
from sluice.etl.downstream import (
    Checkpoint,
    CheckpointTable,
    DownstreamError,
    MySQLSession,
    SavepointFile,
)
from sluice.etl.settings import Downstream, File, Kafka, Target


def read_checkpoint(target: Target, cluster_id: int) -> Checkpoint | None:
    """Return the TSO through which the downstream is complete; None before the first write.

    Raises CheckpointError, DownstreamError and OSError when that can't be known.
    """
    match target:
        case Downstream():
            with _open_session(target) as session:
                return _load_checkpoint(session, target, cluster_id)
        case File():
            return _from_file(_savepoint_file(target, cluster_id))
        case Kafka():
            return _from_file(_savepoint_file(target, cluster_id))


@contextlib.contextmanager
def hold_checkpoint(target: Target, cluster_id: int) -> Iterator[Checkpoint | None]:
    """Read the checkpoint, and let no process commit until the block ends.

    A process that commits later asks for operators' orders later. Raises as `read_checkpoint`, and
    what asking Kafka raises.
    """
    if isinstance(target, Downstream):
        with _open_session(target) as session:
            yield _load_checkpoint(session, target, cluster_id, wait=True)
        return
    savepoint = _savepoint_file(target, cluster_id)
    if not savepoint.path.parent.is_dir():
        yield None
        return
    with savepoint.held():
        found = _from_file(savepoint)
        # a process may have ended between the topic and the savepoint
        if isinstance(target, Kafka):
            from sluice.etl.downstream.sinks.kafka import sent_through

            sent_ts = sent_through(target, cluster_id)
            if sent_ts > (found.commit_ts if found else 0):
                found = (found or Checkpoint(0)).at(sent_ts)
        yield found


def _savepoint_file(target: File | Kafka, cluster_id: int) -> SavepointFile:
    if isinstance(target, File):
        from sluice.etl.downstream.sinks.file import savepoint_file

        return savepoint_file(target, cluster_id)
    from sluice.etl.downstream.sinks.kafka import savepoint_file as kafka_savepoint_file

    return kafka_savepoint_file(target, cluster_id)


def _from_file(file: SavepointFile) -> Checkpoint | None:
    found = file.load()
    return found.checkpoint if found and found.checkpoint.commit_ts else None


def read_writer(downstream: Downstream, cluster_id: int) -> str | None:
    """Return the statement that the writing session of a database executes now: "" for nothing.

    None if there is no such session, or the server can't show it. Raises DownstreamError.
    """
    with _open_session(downstream) as session:
        found = (
            CheckpointTable.from_settings(session, downstream, cluster_id)
            .writer_lock()
            .holder(session)
        )
        return found[1] if found else None


@contextlib.contextmanager
def _open_session(downstream: Downstream) -> Iterator[MySQLSession]:
    # a reader marks nothing, and makes no table of marks
    session = MySQLSession(replace(downstream, loopback_control=False))
    try:
        session.connect()
        yield session
    finally:
        session.close()


def _load_checkpoint(
    session: MySQLSession, downstream: Downstream, cluster_id: int, *, wait: bool = False
) -> Checkpoint | None:
    try:
        return CheckpointTable.from_settings(session, downstream, cluster_id).load(wait=wait)
    except DownstreamError as error:
        if error.code in (server_errors.UNKNOWN_DATABASE, server_errors.NO_SUCH_TABLE):
            return None
        raise
