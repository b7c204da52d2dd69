"""Sessions for a look, and whether two settings name one server."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.etl.downstream.mysql import MySQLSession
from sluice.etl.settings import Downstream

__all__ = ["is_same_server", "open_session"]


@contextmanager
def open_session(downstream: Downstream) -> Iterator[MySQLSession]:
    """Open a session there. Raises DownstreamError."""
    session = MySQLSession(downstream)
    session.connect()
    with contextlib.closing(session):
        yield session


def is_same_server(session: MySQLSession, other: Downstream) -> bool:
    """Return whether the session's server is that of `other`, under whatever name.

    It is if a lock that is taken there is seen here. Raises DownstreamError.
    """
    with open_session(other) as beside:
        if not (beside.dialect.has_user_locks and session.dialect.supports_is_used_lock):
            return beside.address.partition("@")[2] == session.address.partition("@")[2]
        name = f"sluice-{secrets.token_hex(12)}"
        beside.query("SELECT GET_LOCK(%s, 0)", (name,))
        return session.query("SELECT IS_USED_LOCK(%s)", (name,))[0][0] is not None
