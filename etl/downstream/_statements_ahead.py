"""Prepare what is pipelined to a downstream, and decide whether anything is.

`sluice.etl.downstream._pipelining` sends it.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from typing import Any, TypeAlias

from pymysql.constants import SERVER_STATUS

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.formats.load_statements import insert_statement, load_statement
from sluice.etl.downstream._connection import DownstreamConnection, DownstreamError, LoadOutcome
from sluice.etl.downstream._pipelining import FIRST_LINE, PipelinedStatement

MAX_PIPELINED = 128
"""Statements at most that are sent ahead: all their answers fit into what the network holds."""
_MAX_INLINE_LOAD_BYTES = 16 * 2**10
"""Size of rows that are sent as one statement with their values; more go as a LOAD DATA."""
_PIPELINING_PAUSE_S, _PIPELINING_TRUST_S = (10.0, 600.0), 60.0
"""Pause of pipelining after a lost connection (least, most), and the time that ends the backoff.

A connection that held for the second value after the pause makes the next loss count as the first.
"""
NO_ESCAPES = SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES


# Not frozen: that takes several times as long to make, and there is one for each statement.
@dataclass(slots=True, unsafe_hash=True)
class LoadData:
    """Rows to be written into `target`, see `MySQLSession.load`.

    `may_replace`: whether rows with the same keys may be there; where they mayn't it may be an
    error if they are.
    """

    target: str
    layout: LoadLayout
    payload: Any
    may_replace: bool = True


@dataclass(frozen=True, slots=True)
class Query:
    """A statement that is answered with rows."""

    statement: str


StatementOutcome: TypeAlias = int | LoadOutcome | list[tuple[Any, ...]] | DownstreamError
"""Outcome of a pipelined statement: affected rows, a load's outcome, rows, or its error."""


@dataclass(slots=True)
class PipeliningState:
    """Decide whether statements are pipelined to a server, for all sessions that share it.

    A server that loses the connection may have been restarted, or it, or a proxy, hangs up at each
    try: each loss doubles the pause before the next try.
    """

    is_refused: bool = False
    """True once the server has refused a pipelined load; final."""
    pause_s: float = 0.0
    """How long nothing is pipelined after the last loss."""
    lost_at: float = -math.inf
    """Time of the last loss, by the monotonic clock."""

    @property
    def allowed(self) -> bool:
        """Return whether statements may be pipelined now."""
        return not self.is_refused and time.monotonic() >= self.lost_at + self.pause_s

    def lost(self) -> None:
        """Record that a connection was lost while answers were outstanding."""
        least, most = _PIPELINING_PAUSE_S
        self.lost_at, self.pause_s = time.monotonic(), min(max(least, 2 * self.pause_s), most)

    def on_answered(self) -> None:
        """Record that all answers have come."""
        if self.pause_s and time.monotonic() > self.lost_at + self.pause_s + _PIPELINING_TRUST_S:
            self.pause_s = 0.0


def query_statement(statement: str) -> PipelinedStatement:
    return PipelinedStatement(statement.encode("utf-8", "surrogateescape"), asks=True)


def pipelined_statement(
    connection: DownstreamConnection, asked: bytes | LoadData | Query
) -> PipelinedStatement:
    if isinstance(asked, bytes):
        return PipelinedStatement(asked)
    return (
        query_statement(asked.statement)
        if isinstance(asked, Query)
        else _pipelined_insert(connection, asked)
    )


def _pipelined_insert(connection: DownstreamConnection, load: LoadData) -> PipelinedStatement:
    """Write few rows as one statement with the values: the server needn't ask for a file."""
    layout = load.layout
    if (
        len(load.payload) > _MAX_INLINE_LOAD_BYTES
        or layout.bits
        or layout.hex
        or layout.left_out
        or connection.server_status & NO_ESCAPES
    ):
        return pipelined_load(load, led=True)
    return PipelinedStatement(
        insert_statement(load.target, layout, load.payload, replaces=load.may_replace)
    )


def pipelined_load(load: LoadData, *, led: bool = False, also: str = "") -> PipelinedStatement:
    """Return a load; `led`: behind FIRST_LINE. `also`: as in `MySQLSession.load`."""
    name = "sluice-" + secrets.token_hex(8)
    statement = (
        f"LOAD DATA LOCAL INFILE '{name}'"
        f" {load_statement(load.target, load.layout, led=led, also=also)}"
    )
    payload = FIRST_LINE + bytes(load.payload) if led else load.payload
    return PipelinedStatement(statement.encode("utf-8", "surrogateescape"), name.encode(), payload)
