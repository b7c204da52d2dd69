"""Ask a downstream's server: in a session for that alone, or in one that is open."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sluice.etl.downstream._connection import DownstreamError
from sluice.etl.downstream._statements_ahead import MAX_PIPELINED
from sluice.etl.downstream.mysql import MySQLSession
from sluice.etl.settings import Downstream

__all__ = [
    "engines_without_transactions",
    "is_same_server",
    "open_session",
    "tables_with_transactions",
]

_ENGINE = (
    "SELECT t.ENGINE FROM information_schema.TABLES t JOIN information_schema.ENGINES e ON e.ENGINE"
    " = t.ENGINE WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s AND e.TRANSACTIONS = 'NO'"
)

_WITH_TRANSACTIONS = (
    "SELECT t.TABLE_NAME FROM information_schema.TABLES t JOIN information_schema.ENGINES e ON"
    " e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA = %s AND e.TRANSACTIONS = 'YES'"
)


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


def engines_without_transactions(
    session: MySQLSession, tables: Sequence[tuple[str, str]]
) -> list[str]:
    """Return the storage engine of each (schema, table) if it has no transactions, else "".

    "" also if there is no such table. Raises DownstreamError.
    """
    found: list[str] = []
    for first in range(0, len(tables), MAX_PIPELINED):
        some = tables[first : first + MAX_PIPELINED]
        several = (
            session.query_pipelined(_ENGINE, some)
            if session.is_pipelining
            else [session.query(_ENGINE, each) for each in some]
        )
        for rows in several:
            if isinstance(rows, DownstreamError):
                raise rows
            found.append(str(rows[0][0]) if rows else "")
    return found


def tables_with_transactions(session: MySQLSession, schema: str) -> frozenset[str]:
    """Return the tables of a schema whose storage engine has transactions. Raises DownstreamError.

    Of thousands of tables this takes a fraction of what asking for each of them does.
    """
    return frozenset(str(name) for (name,) in session.query(_WITH_TRANSACTIONS, (schema,)))
