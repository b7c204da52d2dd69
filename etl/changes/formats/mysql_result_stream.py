"""The rows of a statement's result as they come over a connection, in blocks.

See `sluice.etl.changes.formats.mysql_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
from pymysql.constants import COMMAND

from sluice.etl.changes.formats.mysql_rows import RowBlock, RowPackets

__all__ = ["result_blocks"]

_READ_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20


def result_blocks(
    connection: Any, statement: str | bytes, read_timeout_s: float
) -> Iterator[RowBlock]:
    """Yield the rows of a query over a `LoginConnection`, about BLOCK_BYTES at a time.

    They are never more than come. A caller that doesn't read to the end must close the connection.
    Raises pymysql's errors, OSError, ProtocolError.
    """
    connection._execute_command(COMMAND.COM_QUERY, statement)
    columns = connection._read_packet().read_length_encoded_integer()
    for _ in range(columns):
        connection._read_packet()
    connection._read_packet()  # the end of the columns
    packets = RowPackets(columns, connection.most_packet_bytes)
    connection._sock.settimeout(read_timeout_s)
    while not packets.is_over:
        data = connection._rfile.read1(_READ_BYTES)
        if not data:
            raise pymysql.err.OperationalError(
                2013, "the connection was lost in the middle of a result"
            )
        packets.feed(data)
        if packets.has(BLOCK_BYTES):
            while (block := packets.take()) is not None:
                yield block
    if packets.error:
        raise _error_of(packets.error)


def _error_of(packet: bytes) -> pymysql.err.MySQLError:
    number = int.from_bytes(packet[1:3], "little")
    text = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return pymysql.err.OperationalError(number, text.decode("utf-8", "replace"))
