"""Send statements before those in front of them are answered, all in one round trip.

A server answers commands in the order in which they come, and reads one when it is done with the
one before. The rows of a LOAD DATA LOCAL are sent behind it unasked, with the sequence numbers
that they have behind the server's request for them (MySQL's client/server protocol, "LOCAL INFILE
request"). A server that refuses the statement before it asks takes them for a command with a wrong
number, and ends the connection.

Answers are read as the bytes that they are: an object for each packet would cost more than all
that is sent.

Nothing of the rows may ever be executed, not by a proxy that looks at no numbers either. So they
are one packet, and begin with a line that the LOAD passes over: its first byte is no command's.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pymysql
from pymysql.constants import CR

from sluice.errors import Signal

_QUERY = b"\x03"
FIRST_LINE = b"sluice\n"
MIN_PACKET_BYTES = 128 * 2**10
"""A file has to fit into one packet. Bytes."""
_MAX_PACKET_BYTES = 0xFFFFFF
_FIRST_ROW_NUMBER = 2
"""Sequence number of a load's rows: the statement has 0, the server's request 1."""
AFTER_ROWS = _FIRST_ROW_NUMBER + 2
"""Sequence number of the server's answer to the rows and the empty packet at their end."""
_LENGTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Bytes of the integer behind each of these prefixes (MySQL's length-encoded integer)."""
_OK, _FILE, _ERROR = 0, 0xFB, 0xFF
_MIN_ANSWER_BYTES = 11
"""Bytes of the shortest answer to a statement, an OK: its header, and seven."""
_AWAITED = 4
"""Answers waited for together: so many waits for a row are over before the read timeout is."""
_MAX_SHORT_INTEGER_BYTES = 7
"""Bytes of an OK whose two integers are small, before its message."""


# Not frozen: that takes several times as long to make, and there is one for each statement.
@dataclass(slots=True, unsafe_hash=True)
class PipelinedStatement:
    """A statement.

    `name`: the file that it loads, if it is a LOAD DATA LOCAL INFILE; `payload` (bytes-like): its
    contents, which begin with FIRST_LINE if they are sent ahead. `asks`: rows of a result are its
    answer.
    """

    statement: bytes
    name: bytes = b""
    payload: Any = b""
    asks: bool = False


class StatementResult(NamedTuple):
    """A statement's answer: affected rows, warnings, message, and a result's rows; or its error."""

    affected: int = 0
    warnings: int = 0
    message: bytes = b""
    rows: Sequence[tuple[Any, ...]] = ()
    error: pymysql.err.MySQLError | None = None


class LoadRejected(Signal):
    """The server refused to load rows that were on their way, by `error`.

    The connection is closed.
    """

    def __init__(self, error: pymysql.err.MySQLError) -> None:
        super().__init__(str(error))
        self.error = error


def execute_pipelined(
    connection: Any, orders: Sequence[PipelinedStatement]
) -> list[StatementResult]:
    """Execute statements in order and return one answer for each.

    What is sent has to fit into what the server and the network between hold: some hundred KiB,
    some dozens of orders. Raises PyMySQL's errors and OSError if the connection is lost,
    LoadRejected if the server refused a load before its rows; the error of any other refused
    statement is in its answer. Any other error closes the connection: an answer that was not read
    would be taken for that to the next statement.
    """
    if not connection.open:
        raise pymysql.err.InterfaceError(0, "the connection is closed")
    connection._write_bytes(b"".join([part for order in orders for part in _packets_of(order)]))
    connection._sock.settimeout(connection._read_timeout)
    connection._current_timeout = connection._read_timeout
    try:
        with _reading_together(connection, len(orders)) as most:
            found = [_read_outcome(connection, order) for order in orders[:most]]
        return found + [_read_outcome(connection, order) for order in orders[most:]]
    except OSError as error:
        raise _connection_lost(connection, str(error)) from error
    except BaseException:
        connection._force_close()
        raise


@contextlib.contextmanager
def _reading_together(connection: Any, count: int) -> Iterator[int]:
    """Wait for some answers at a time, and yield for how many of `count` that is right.

    The server sends each by itself. A thread that is woken up for each takes about as much CPU time
    as all else that a statement needs here. Those behind them are so many that nothing is waited
    for that doesn't come. More at a time would be slower: what isn't read isn't acknowledged, and
    behind ten packets a server waits for that.
    """
    found, most = connection._sock, count - _AWAITED - 1
    if type(found) is not socket.socket or most <= 0:  # TLS has a buffer of its own
        yield 0
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _AWAITED * _MIN_ANSWER_BYTES)
    try:
        yield most
    finally:
        with contextlib.suppress(OSError):  # where it was closed meanwhile
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _read_outcome(connection: Any, order: PipelinedStatement) -> StatementResult:
    return _read_rows(connection) if order.asks else _read_result(connection, order.name)


def _packets_of(order: PipelinedStatement) -> tuple[bytes, ...]:
    """Return the packets of one statement."""
    statement = order.statement
    command = _header(0, len(statement) + 1) + _QUERY
    if not order.name:
        return command, statement
    if (
        not bytes(order.payload[: len(FIRST_LINE)]) == FIRST_LINE
        or len(order.payload) > MIN_PACKET_BYTES
    ):
        raise ValueError("rows that could be read as commands are not sent ahead")
    return (
        command,
        statement,
        _header(_FIRST_ROW_NUMBER, len(order.payload)),
        order.payload,
        _header(_FIRST_ROW_NUMBER + 1, 0),
    )


def _header(number: int, size: int) -> bytes:
    return (number << 24 | size).to_bytes(4, "little")


def _read_rows(connection: Any) -> StatementResult:
    """Read the answer to a statement that returns rows."""
    connection._next_seq_id = 1
    try:
        connection._read_query_result()
    except pymysql.err.MySQLError as error:
        if not connection.open:
            raise
        return StatementResult(error=error)
    return StatementResult(rows=list(connection._result.rows or ()))


def _read_result(connection: Any, name: bytes) -> StatementResult:
    """Read the answer to a statement without rows; `name`: of the file that was sent with it."""
    data = _read_packet(connection, 1)
    if (
        len(data) >= _MAX_SHORT_INTEGER_BYTES
        and data[0] == _OK
        and data[1] < _FILE
        and data[2] < _FILE
    ):
        connection.server_status = data[3] | data[4] << 8
        return StatementResult(data[1], data[5] | data[6] << 8, data[_MAX_SHORT_INTEGER_BYTES:])
    if data[0] == _FILE:
        data = _read_load_result(connection, data[1:], name)
    elif name and data[0] == _ERROR:
        connection._force_close()
        raise LoadRejected(_error(data))
    if data[0] == _ERROR:
        return StatementResult(error=_error(data))
    if data[0] != _OK:
        raise _connection_lost(connection, "what it answers is no answer to such a statement")
    try:
        affected, at = _read_integer(data, 1)
        _, at = _read_integer(data, at)
        connection.server_status = data[at] | data[at + 1] << 8
        return StatementResult(affected, data[at + 2] | data[at + 3] << 8, data[at + 4 :])
    except IndexError:
        raise _connection_lost(connection, "its answer is cut off") from None


def _read_load_result(connection: Any, wanted: bytes, name: bytes) -> bytes:
    """Return the server's answer to the rows, which are on their way."""
    data = _read_packet(connection, AFTER_ROWS if name else 2)
    if wanted != name or not name:
        raise _connection_lost(connection, "the server asked for a file that was not offered to it")
    return data


def _read_packet(connection: Any, number: int) -> bytes:
    """Read one packet. Raises PyMySQL's errors and OSError."""
    read = connection._rfile.read
    head: bytes = read(4)
    if len(head) < 4 or head[3] != number:
        raise _connection_lost(
            connection, f"packet {number} was to come, and {head[3:].hex() or 'nothing'} came"
        )
    size = head[0] | head[1] << 8 | head[2] << 16
    data: bytes = read(size)
    if len(data) < size or size in (0, _MAX_PACKET_BYTES):
        raise _connection_lost(connection, f"{len(data)} bytes of an answer of {size}")
    return data


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    """Return a length-encoded integer and the place behind it. Raises IndexError."""
    first = data[at]
    if first < _FILE:
        return first, at + 1
    size = _LENGTHS.get(first, 0)
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _error(data: bytes) -> pymysql.err.MySQLError:
    try:
        pymysql.err.raise_mysql_exception(data)
    except pymysql.err.MySQLError as error:
        return error
    except (ValueError, IndexError, struct.error) as error:
        return pymysql.err.OperationalError(
            CR.CR_MALFORMED_PACKET, f"an error that can't be read ({error!r})"
        )


def _connection_lost(connection: Any, why: str) -> pymysql.err.MySQLError:
    connection._force_close()
    return pymysql.err.OperationalError(CR.CR_SERVER_LOST, f"{why}; connection closed")
