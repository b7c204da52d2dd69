"""Hold a lock by name downstream for as long as the writing session is connected.

A process that takes over waits until that session has ended, and ends it if need be.

So when a process goes on from the checkpoint, no statement of the one before is running in that
session, waiting in the server (for a lock, for the rest of a LOAD) or still to come: a process
that was stopped for a while wakes up to a dead connection. A DDL statement that runs is waited
for, since its progress can't be known; whatever else the session does is rolled back with it.

Sessions that write beside the first one (mode `parallel`) hold locks of their own, with numbers,
so that they are found too.
"""

from __future__ import annotations

import contextlib
import logging
import time
import zlib

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import literal
from sluice.etl.downstream._connection import DownstreamError
from sluice.etl.downstream.mysql import MySQLSession

log = logging.getLogger("sluice.apply")

_SESSION_END_WAIT_S = 5
"""How long the server may take to notice that a session of this process was closed."""
_MAX_HELPERS = 64
"""Numbers of locks that are looked up in one query."""
_ROLLED_BACK = {
    "",
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "REPLACE",
    "LOAD",
    "SET",
    "START",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "DO",
    "USE",
    "SHOW",
    "WITH",
}
"""Statements from which a session may be cut off: they write nothing, or all goes with it."""


class WriterLock:
    """The lock of the pipeline whose checkpoint of cluster `cluster_id` is in `schema`.`table`."""

    def __init__(self, cluster_id: int, schema: str, table: str) -> None:
        self.name = f"sluice-{cluster_id}-{zlib.crc32(f'{schema}.{table}'.encode()):08x}"
        self._is_logged = False

    def acquire(self, session: MySQLSession, wait_s: float) -> None:
        """Hold the lock in `session` until it ends.

        Every session that held it, or a number of it, has ended or will commit nothing more. Raises
        DownstreamError, transient, when a DDL statement of a session before is still running after
        `wait_s`, or that session can't be ended.
        """
        deadline = time.monotonic() + wait_s
        trouble = ""
        while not self._try_get(session, 1 if trouble else 0):
            holder = self._holder(session)
            trouble = self._end(session, holder) if holder is not None else "it is not known which"
            if time.monotonic() > deadline:
                raise DownstreamError(
                    server_errors.LOCK_WAIT_TIMEOUT,
                    f"{session.address}: another session writes there as this pipeline: {trouble}",
                )
        self._end_helpers(session)

    def try_acquire(self, session: MySQLSession, *, waits: bool = False) -> bool:
        """Hold the lock, unless another session does.

        `waits`: for the server to notice that a session which held it was closed.
        """
        return self._try_get(session, _SESSION_END_WAIT_S if waits else 0)

    def hold(self, session: MySQLSession, number: int) -> None:
        """Take the lock of `number`, by which a process that takes over finds `session`.

        Raises DownstreamError, transient, if another session has this number.
        """
        if not self._get_lock(session, f"{self.name}-{number}", _SESSION_END_WAIT_S):
            raise DownstreamError(
                server_errors.LOCK_WAIT_TIMEOUT,
                f"{session.address}: another process writes there as this pipeline",
            )

    def holder(self, session: MySQLSession) -> tuple[int, str] | None:
        """Return the id of the session that holds the lock, and its statement ("" if none).

        None if the lock is free.
        """
        found = self._holder(session)
        return None if found is None else (found, _running(session, found))

    def _try_get(self, session: MySQLSession, wait_s: int) -> bool:
        return self._get_lock(session, self.name, wait_s)

    def _get_lock(self, session: MySQLSession, name: str, wait_s: int) -> bool:
        if session.dialect.has_user_locks:
            return bool(session.query("SELECT GET_LOCK(%s, %s)", (name, wait_s))[0][0])
        if not self._is_logged:
            log.warning(
                "%s has no locks by name: a statement of a process before this one may still be"
                " under way there",
                session.address,
            )
            self._is_logged = True
        return True

    def _holder(self, session: MySQLSession) -> int | None:
        if not session.dialect.supports_is_used_lock:
            return None
        found = session.query("SELECT IS_USED_LOCK(%s)", (self.name,))[0][0]
        return None if found is None else int(found)

    def _end(self, session: MySQLSession, holder: int) -> str:
        """End a session, unless a DDL statement runs there; what is to be waited for."""
        statement = _running(session, holder)
        if _first_word(statement) not in _ROLLED_BACK:
            return (
                f"a DDL statement of a session before is still running in connection {holder}:"
                f" {statement[:300]}"
            )
        log.warning(
            "taking over on %s: connection %d, which wrote there as this pipeline, is ended",
            session.address,
            holder,
        )
        try:
            session.query(session.dialect.kill(holder))
        except DownstreamError as error:
            return (
                f"connection {holder} can't be ended ({error.message}): end it by hand (KILL"
                f" {holder})"
            )
        return f"connection {holder} is ending"

    def _end_helpers(self, session: MySQLSession) -> None:
        first = 0
        holders = [0] if session.dialect.supports_is_used_lock else []
        while holders:
            looks = ", ".join(
                f"IS_USED_LOCK({literal(f'{self.name}-{number}')})"
                for number in range(first, first + _MAX_HELPERS)
            )
            holders = [
                int(found) for found in session.query(f"SELECT {looks}")[0] if found is not None
            ]
            for holder in holders:
                with contextlib.suppress(
                    DownstreamError
                ):  # gone meanwhile, or not to be ended: it commits nothing all the same
                    session.query(session.dialect.kill(holder))
            first += _MAX_HELPERS


def _running(session: MySQLSession, connection: int) -> str:
    rows = session.query(
        "SELECT INFO FROM information_schema.PROCESSLIST WHERE ID = %s", (connection,)
    )
    return " ".join(str(rows[0][0] or "").split()) if rows else ""


def _first_word(statement: str) -> str:
    return statement.split(" ", 1)[0].upper()
