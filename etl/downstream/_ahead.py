"""Statements that are sent before those in front of them are answered: all of them take one round trip.

A server answers commands in the order in which they come, and reads one when it is done with the one before. The rows
of a LOAD DATA LOCAL are sent behind it unasked, with the sequence numbers that they have behind the server's request
for them (MySQL's client/server protocol, "LOCAL INFILE request"). A server that refuses the statement before it asks
takes them for a command with a wrong number, and ends the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

_QUERY = b"\x03"
_ROWS_FROM = 2  # the statement has the sequence number 0, the server's request 1


@dataclass(frozen=True, slots=True)
class Order:
    """A statement. `name`: the file that it loads, if it is a LOAD DATA LOCAL INFILE; `payload` (bytes-like): its
    contents.
    """

    statement: bytes
    name: bytes = b""
    payload: Any = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: affected rows, rows of a result, its message, warnings; or its error."""

    affected: int = 0
    rows: Sequence[tuple[Any, ...]] = ()
    message: str = ""
    warnings: int = 0
    error: pymysql.err.MySQLError | None = None


class NotAskedError(pymysql.err.OperationalError):
    """The server refused to load rows that were on their way: the connection is closed."""


def send_ahead(connection: Any, orders: Sequence[Order], packet_bytes: int) -> list[Answer]:
    """One answer an order. `packet_bytes`: how many of a file make a packet. What is sent has to fit into what the
    server and the network between hold: some hundred KiB, some dozens of orders. Raises PyMySQL's errors and OSError if
    the connection is lost, NotAskedError; of refused statements it is the answer that tells.
    """
    connection._write_bytes(b"".join(part for order in orders for part in _packets(order, packet_bytes)))
    return [_answer(connection, order, packet_bytes) for order in orders]


def packets_of(payload: Any, packet_bytes: int) -> Iterator[bytes]:
    """A file's contents as packets, the empty one at its end with them."""
    view = memoryview(payload)
    for start in range(0, len(view), packet_bytes):
        yield bytes(view[start : start + packet_bytes])
    yield b""


def _packets(order: Order, packet_bytes: int) -> Iterator[bytes]:
    yield from _packet(0, _QUERY + order.statement)
    if order.name:
        for number, data in enumerate(packets_of(order.payload, packet_bytes), _ROWS_FROM):
            yield from _packet(number, data)


def _packet(number: int, data: bytes) -> Iterator[bytes]:
    yield struct.pack("<I", len(data))[:3] + bytes([number % 256])
    yield data


def _answer(connection: Any, order: Order, packet_bytes: int) -> Answer:
    connection._next_seq_id = 1
    sent = sum(1 for _ in packets_of(order.payload, packet_bytes)) if order.name else 0
    connection.sent = (order.name, (_ROWS_FROM + sent) % 256)
    try:
        connection._read_query_result()
    except pymysql.err.MySQLError as error:
        if not connection.open:
            raise
        if connection.sent[0]:
            connection._force_close()
            raise NotAskedError(*error.args) from error
        return Answer(error=error)
    finally:
        connection.sent = (b"", 0)
    result = connection._result
    message = result.message or b""
    return Answer(
        int(result.affected_rows or 0),
        list(result.rows or ()),
        message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message),
        int(result.warning_count or 0),
    )
