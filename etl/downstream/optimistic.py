"""Begin transactions whose COMMIT fails if a row that they write was changed since they began."""

from __future__ import annotations

from sluice.etl.changes import server_errors
from sluice.etl.downstream._connection import DownstreamError
from sluice.etl.downstream.mysql import MySQLSession


def begin_optimistic(session: MySQLSession) -> int:
    """Begin an optimistic transaction, and return the timestamp (TSO) of what it sees.

    Raises DownstreamError: TiDB alone has them.
    """
    if not session.dialect.is_tidb:
        raise DownstreamError(
            server_errors.UNFIT,
            f"{session.address} is {session.dialect}, and [apply] reverse-relay needs a TiDB:"
            " conflicts are found by its optimistic transactions",
            "take [apply] reverse-relay and conflicts out of the settings",
        )
    session.query("BEGIN OPTIMISTIC")
    ((seen_ts,),) = session.query("SELECT @@tidb_current_ts")
    return int(seen_ts)
