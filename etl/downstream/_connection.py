"""Connect to a MySQL-protocol downstream through PyMySQL: LOAD DATA from memory, typed errors.

LOAD DATA LOCAL lets the *server* name the file the client sends. Here no file is ever opened: the
client answers only to the random name of the load in progress, from memory; any other name is
refused and ends the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pymysql
import pymysql.connections
from pymysql import protocol

from sluice.errors import SluiceError
from sluice.etl.changes import server_errors
from sluice.etl.settings.sql_login import LoginConnection

_PACKET_BYTES = 1 << 20
_ADVICE = {
    server_errors.ACCESS_DENIED: (
        "correct [downstream] user, or where its password is: password-env, password-file or"
        " password-connection"
    ),
    server_errors.TRANSACTION_TOO_LARGE: (
        "the transaction is larger than TiDB's performance.txn-total-size-limit: raise it (10 GiB"
        " at the most), or lower [apply] max-bytes, or use mode parallel, which commits every"
        " statement by itself; a copy takes a file of a dump that isn't cut in one transaction:"
        " dump into smaller files"
    ),
    server_errors.MEMORY_EXCEEDED: (
        "raise TiDB's tidb_mem_quota_query, or lower [apply] max-bytes, or use mode parallel, which"
        " commits every statement by itself"
    ),
    server_errors.ENTRY_TOO_LARGE: (
        "a row is larger than TiDB's performance.txn-entry-size-limit: raise it"
    ),
    server_errors.INCORRECT_VALUE: (
        "the column's character set can't hold these bytes, which the upstream has not checked"
        " either: change the column here, to utf8mb4 if they are utf-8, else to bytes (VARBINARY,"
        " BLOB), which hold whatever comes"
    ),
    server_errors.PACKET_TOO_LARGE: "raise the server's max_allowed_packet",
}


class RunQuery(Protocol):
    """Run one statement and return its rows, as `MySQLSession.query`."""

    def __call__(
        self, statement: str, args: Sequence[object] | None = None
    ) -> list[tuple[Any, ...]]: ...


class DownstreamError(SluiceError):
    """The downstream refused a statement.

    `code` is the server's error number, 0 if the connection failed. It is transient if rolling
    back, connecting again and starting at the checkpoint may help.
    """

    hint = "do what the server's message asks for, then let the task go on"

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        text = f"{message} (error {code})" if code else message
        super().__init__(text, transient=code in server_errors.TRANSIENT, hint=hint)
        self.code = code
        self.message = message
        if self.transient:
            self.hint = "start the downstream, or see why it doesn't answer or finish"


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The server's report of a load: lines read, rows REPLACE removed, lines skipped, warnings.

    `records` -1: `deleted` is the sum of rows written and rows removed.
    """

    records: int
    deleted: int
    skipped: int
    warnings: int


class _Result(pymysql.connections.MySQLResult):
    """A result that answers the server's request for a file from memory."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection: Any = self.connection
        wanted = protocol.LoadLocalPacketWrapper(first_packet).filename
        name, payload = connection.offered
        connection.offered = (b"", b"")
        refused = not name or wanted != name
        try:
            view = memoryview(b"" if refused else payload)
            for start in range(0, len(view), connection.packet_bytes):
                connection.write_packet(bytes(view[start : start + connection.packet_bytes]))
        finally:
            if connection.open:  # else the error that has closed it is the one to raise
                connection.write_packet(b"")
        packet = connection._read_packet()
        if refused:
            connection._force_close()
            raise pymysql.err.OperationalError(
                0, "the server asked for a file that was not offered to it; connection closed"
            )
        this: Any = self
        this._read_ok_packet(packet)


class DownstreamConnection(LoginConnection):
    offered: tuple[bytes, Any] = (b"", b"")
    """The one file that the server may ask for: its name and contents."""

    @property
    def packet_bytes(self) -> int:
        """Return how much of a file makes a packet."""
        return min(_PACKET_BYTES, self.max_allowed_packet)

    def _read_query_result(self, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002 as pymysql has it
        result = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)


def downstream_error(error: BaseException, address: str) -> DownstreamError:
    """Return PyMySQL's error, or an OSError, as DownstreamError with advice where there is any."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error) or "connection lost"
    if code in _ADVICE and (code != server_errors.INCORRECT_VALUE or "string value" in text):
        text += f"; {_ADVICE[code]}"
    return DownstreamError(0 if isinstance(error, OSError) else code, f"{address}: {text}")
