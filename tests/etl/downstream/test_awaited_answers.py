"""The answers to many statements come one by one, and some are waited for together."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from sluice.etl.downstream._pipelining import PipelinedStatement, execute_pipelined

OK = b"\x07\0\0\x01\0\x01\0\x02\0\0\0"
"""One row affected."""
COUNT = 40


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end, and the server's."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with closing(client), closing(server):
            yield client, server


def connection(client: socket.socket, read_timeout_s: float) -> Any:
    """What PyMySQL has of a connection."""
    return SimpleNamespace(
        open=True,
        _sock=client,
        _rfile=client.makefile("rb"),
        _read_timeout=read_timeout_s,
        _write_bytes=client.sendall,
        _force_close=client.close,
    )


def answered(
    sockets: tuple[socket.socket, socket.socket],
    parts: list[bytes],
    read_timeout_s: float = 20.0,
    count: int = COUNT,
) -> tuple[list[int], int]:
    """What statements affected if the server sends `parts`, and how often the client read."""
    client, server = sockets
    made = connection(client, read_timeout_s)
    reads = 0
    read_into = made._rfile.raw.readinto

    def counted(buffer: Any) -> Any:
        nonlocal reads
        reads += 1
        return read_into(buffer)

    made._rfile.raw.readinto = counted

    def serve() -> None:
        for part in parts:
            server.sendall(part)
            time.sleep(0.001)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        found = execute_pipelined(made, [PipelinedStatement(b"DO 1")] * count)
    finally:
        thread.join()
    return [each.affected for each in found], reads


def test_answers_that_come_one_by_one_are_read_together(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    affected, reads = answered(sockets, [OK] * COUNT)
    assert affected == [1] * COUNT
    assert reads <= COUNT // 2


def test_the_rest_of_longer_answers_is_waited_for(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    told = b"Rows matched: 1"
    longer = bytes([7 + len(told), 0, 0]) + OK[3:] + told
    assert answered(sockets, [longer] * COUNT)[0] == [1] * COUNT


@pytest.mark.parametrize("count", [1, 4, 5, 6, 7, 12, COUNT])
def test_however_many_answers_there_are_none_is_waited_for_that_does_not_come(
    sockets: tuple[socket.socket, socket.socket], count: int
) -> None:
    for _ in range(2):
        assert answered(sockets, [OK[:5], OK[5:]] * count, count=count)[0] == [1] * count


def test_a_server_that_stops_answering_ends_the_wait_by_the_read_timeout(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="timed out"):
        answered(sockets, [OK] * (COUNT - 3), 0.1)


def test_a_server_that_hangs_up_ends_the_wait_at_once(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    client, server = sockets
    made = connection(client, 20.0)
    threading.Timer(0.05, server.shutdown, [socket.SHUT_RDWR]).start()
    began = time.monotonic()
    with pytest.raises(pymysql.err.OperationalError):
        execute_pipelined(made, [PipelinedStatement(b"DO 1")] * COUNT)
    assert time.monotonic() - began < 10
