"""Statements that are sent before those in front of them are answered: all of them take one round trip.

A server answers commands in the order in which they come, and reads one when it is done with the one before. The rows
of a LOAD DATA LOCAL are sent behind it unasked, with the sequence numbers that they have behind the server's request
for them (MySQL's client/server protocol, "LOCAL INFILE request"). A server that refuses the statement before it asks
takes them for a command with a wrong number, and ends the connection.

Nothing of the rows may ever be executed, not by a proxy that looks at no numbers either. So they are one packet, and
begin with a line that the LOAD passes over: its first byte is no command's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from errors import Signal

_QUERY = b"\x03"
FIRST_LINE = b"sluice\n"
LEAST_PACKET = 128 * 2**10
"""A file has to fit into one packet. Bytes."""
_ROWS_AT = 2
"""Their sequence number: the statement has 0, the server's request 1."""
AFTER_ROWS = _ROWS_AT + 2
"""What the server says when it has them, and the empty packet at their end."""


@dataclass(frozen=True, slots=True)
class Order:
    """A statement. `name`: the file that it loads, if it is a LOAD DATA LOCAL INFILE; `payload` (bytes-like): its
    contents, which begin with FIRST_LINE if they are sent ahead.
    """

    statement: bytes
    name: bytes = b""
    payload: Any = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: affected rows, rows of a result, its message; or its error."""

    affected: int = 0
    rows: Sequence[tuple[Any, ...]] = ()
    message: str = ""
    error: pymysql.err.MySQLError | None = None


class NotAsked(Signal):
    """The server refused to load rows that were on their way, by the error `said`: the connection is closed."""

    def __init__(self, said: pymysql.err.MySQLError) -> None:
        super().__init__(str(said))
        self.said = said


def send_ahead(connection: Any, orders: Sequence[Order]) -> list[Answer]:
    """One answer an order. What is sent has to fit into what the server and the network between hold: some hundred KiB,
    some dozens of orders. Raises PyMySQL's errors and OSError if the connection is lost, NotAsked; of refused
    statements it is the answer that tells.
    """
    connection._write_bytes(b"".join(part for order in orders for part in _packets(order)))
    return [_answer(connection, order) for order in orders]


def _packets(order: Order) -> Iterator[bytes]:
    yield from _packet(0, _QUERY + order.statement)
    if order.name:
        if not bytes(order.payload[: len(FIRST_LINE)]) == FIRST_LINE or len(order.payload) > LEAST_PACKET:
            raise ValueError("rows that could be read as commands are not sent ahead")
        yield from _packet(_ROWS_AT, order.payload)
        yield from _packet(_ROWS_AT + 1, b"")


def _packet(number: int, data: Any) -> Iterator[bytes]:
    yield struct.pack("<I", len(data))[:3] + bytes([number])
    yield data


def _answer(connection: Any, order: Order) -> Answer:
    connection._next_seq_id = 1
    connection.sent = order.name
    try:
        connection._read_query_result()
    except pymysql.err.MySQLError as error:
        if not connection.open:
            raise
        if connection.sent:
            connection._force_close()
            raise NotAsked(error) from error
        return Answer(error=error)
    finally:
        connection.sent = b""
    result = connection._result
    message = result.message or b""
    return Answer(
        int(result.affected_rows or 0),
        list(result.rows or ()),
        message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message),
    )
