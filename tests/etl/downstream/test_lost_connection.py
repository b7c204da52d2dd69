"""A connection that is lost is an error that passes, at whichever round trip it is lost."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sluice.bench.far_proxy import FarProxy
from sluice.errors import SluiceError
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.downstream import DownstreamError, LoadData, MySQLSession, PipeliningState
from sluice.etl.downstream._connection import DownstreamConnection
from tests.etl.mariadb_fixture import MariaDBServer

_MOST_TURNS = 200


@contextmanager
def _cutting(server: MariaDBServer, at: int, cuts: list[int]) -> Iterator[int]:
    """The port of a proxy that breaks the connection at round trip `at`; noted in `cuts`."""

    def cut(turn: int) -> bool:
        if turn == at:
            cuts.append(turn)
        return turn == at

    with FarProxy(server.port, cut=cut) as proxy:
        yield proxy.port


def _lost_at_each_round_trip(server: MariaDBServer, work: Callable[[int], None]) -> list[int]:
    """Have `work` done on a proxy's port, with the connection lost at the first round trip, at the
    second, ...
    """
    cuts: list[int] = []
    for turn in range(1, _MOST_TURNS):
        with _cutting(server, turn, cuts) as port:
            if len(cuts) == turn - 1 and not _passes(work, port, turn):
                assert len(cuts) == turn, "nothing was lost, but it failed"
        if len(cuts) < turn:
            return cuts
    raise AssertionError(f"more than {_MOST_TURNS} round trips")


def _passes(work: Callable[[int], None], port: int, turn: int) -> bool:
    try:
        work(port)
    except SluiceError as error:
        assert error.transient, f"round trip {turn}: {error!r}"
        return False
    return True


def test_a_session_that_is_lost_at_any_round_trip_says_so_and_that_it_passes(
    mariadb: MariaDBServer,
) -> None:
    layout, payload = LoadLayout(("a",)), b"1\n2\n3\n"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.t (a BIGINT PRIMARY KEY)")

    def work(port: int) -> None:
        session = MySQLSession(replace(mariadb.downstream, port=port), ahead=PipeliningState())
        try:
            session.connect()
            session.begin()
            session.execute("DELETE FROM d.t")
            session.load("`d`.`t`", layout, payload)
            session.load("`d`.`t`", layout, payload, strict=False)
            session.warnings()
            session.commit()
            if session.is_pipelining:
                session.execute_pipelined(
                    [b"START TRANSACTION", LoadData("`d`.`t`", layout, payload)]
                )
                session.query_pipelined("SELECT %s", [(1,), (2,)])
            session.rollback()
            assert list(session.blocks("SELECT 1"))
            session.query("SELECT a FROM d.t")
        finally:
            session.close()

    assert len(_lost_at_each_round_trip(mariadb, work)) > 15


def test_a_session_that_is_lost_in_the_middle_of_a_file_says_so_and_that_it_passes(
    mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = b"1\n" * (1 << 20)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.t (a BIGINT)")
    original = DownstreamConnection.write_packet
    packets = 0

    def write_packet(self: DownstreamConnection, data: bytes) -> None:
        nonlocal packets
        packets += 1
        if packets == 2:
            self._sock.shutdown(socket.SHUT_RDWR)
        original(self, data)

    session = MySQLSession(mariadb.downstream, ahead=PipeliningState())
    try:
        session.connect()
        monkeypatch.setattr(DownstreamConnection, "write_packet", write_packet)
        with pytest.raises(DownstreamError, match="gone away") as caught:
            session.load("`d`.`t`", LoadLayout(("a",)), payload)
    finally:
        session.close()
    assert caught.value.transient


def test_a_session_is_closed_when_it_could_not_be_connected(mariadb: MariaDBServer) -> None:
    def connect(port: int) -> None:
        session = MySQLSession(replace(mariadb.downstream, port=port))
        try:
            session.connect()
        except DownstreamError:
            assert not session.is_connected
            raise
        finally:
            session.close()

    assert len(_lost_at_each_round_trip(mariadb, connect)) > 5


def test_a_session_of_tidb_that_is_lost_at_any_round_trip_says_so_and_that_it_passes(
    mariadb: MariaDBServer,
) -> None:
    def work(port: int) -> None:
        with TidbSession(TidbAddress("127.0.0.1", port, "sluice")) as session:
            session.query("SELECT 1")
            for _ in session.blocks("SELECT 1 UNION SELECT 2"):
                pass
            if not session.is_alive():
                session.query("SELECT 1")

    assert len(_lost_at_each_round_trip(mariadb, work)) > 4


@pytest.mark.slow
def test_a_broken_connection_leaves_no_half_of_its_proxy_behind(
    mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection of garbage at each of the loop's turns behind the break finds nothing of it."""
    lost: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: lost.append(unraisable.object))

    def collect(turns: int) -> None:
        gc.collect()
        if turns:
            asyncio.get_running_loop().call_soon(collect, turns - 1)

    def cut(_: int) -> bool:
        collect(5)
        return True

    with FarProxy(mariadb.port, cut=cut) as proxy, pytest.raises(DownstreamError):
        MySQLSession(replace(mariadb.downstream, port=proxy.port)).connect()
    assert not lost


def test_a_session_that_another_thread_closes_says_that_it_is_closed(
    mariadb: MariaDBServer,
) -> None:
    for _ in range(20):
        session = MySQLSession(mariadb.downstream)
        session.connect()
        begun = threading.Event()

        def ask(session: MySQLSession = session, begun: threading.Event = begun) -> None:
            with pytest.raises(DownstreamError) as caught:
                while True:
                    session.query("SELECT 1")
                    begun.set()
            errors.append(caught.value)

        errors: list[DownstreamError] = []
        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(30)
        session.close()
        thread.join(30)
        (error,) = errors
        assert error.transient, error
