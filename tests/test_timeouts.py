"""Every remote call ends in time, even when the other side accepts the connection and never says a
word.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.operate import status
from sluice.etl.settings import Downstream, Relay, Settings, Spark, Upstream
from sluice.etl.spark import session as spark_session
from sluice.etl.spark.errors import SparkUnavailableError
from sluice.relay import RelayLog
from sluice.relay.storage import ByteWriter, open_storage
from sluice.tidb import (
    EtcdClient,
    EtcdError,
    PDClient,
    PDError,
    PumpReader,
    PumpReadError,
    TiKVClient,
    TiKVError,
)
from sluice.tidb.pd import Peer, Region, Store
from sluice.tidb.pumps import check_not_purged
from tests.etl.mariadb_fixture import MariaDBServer

PATIENCE_S = 100.0  # of a test; what the clients are told is far below


class BlackHole:
    """Listens on `port`, accepts every connection, reads what comes and answers nothing."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.accepted.append(connection)
            threading.Thread(target=self._swallow, args=(connection,), daemon=True).start()

    @staticmethod
    def _swallow(connection: socket.socket) -> None:
        try:
            while connection.recv(65536):
                pass
        except OSError:
            return

    def close(self) -> None:
        self._server.close()
        for connection in self.accepted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@pytest.fixture
def hole() -> Iterator[BlackHole]:
    hole = BlackHole()
    yield hole
    hole.close()


def ends(
    call: Callable[[], Any], error: type[BaseException] | tuple[type[BaseException], ...]
) -> str:
    """The call fails, within the test's patience; the error's text."""
    answers: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            answers.append(None)
        except BaseException as caught:
            answers.append(caught)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert answers, f"nothing after {PATIENCE_S} s"
    assert isinstance(answers[0], error), repr(answers[0])
    return str(answers[0])


def test_pd(hole: BlackHole) -> None:
    with PDClient(f"http://127.0.0.1:{hole.port}", timeout_s=0.3) as pd:
        assert str(hole.port) in ends(lambda: pd.cluster_id, PDError)
        ends(pd.tso, PDError)
    assert hole.accepted


def test_etcd(hole: BlackHole) -> None:
    with EtcdClient(f"http://127.0.0.1:{hole.port}", timeout_s=0.3) as etcd:
        ends(lambda: etcd.get("/k"), EtcdError)
        ends(lambda: etcd.put("/k", b"v"), EtcdError)
    assert hole.accepted


class _OneStore:
    """PD's answers for a cluster whose only store is at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get_region(self, key: bytes) -> Region:
        peer = Peer(2, 3, 0)
        return Region(1, b"", b"", 1, 1, (peer,), peer)

    def get_store(self, store_id: int) -> Store:
        return Store(store_id, self._address, 0, "6.6.0")


def test_tikv(hole: BlackHole) -> None:
    pd = cast(PDClient, _OneStore(f"127.0.0.1:{hole.port}"))
    with TiKVClient(pd, timeout_s=0.5, rpc_timeout_s=0.2) as tikv:
        assert str(hole.port) in ends(lambda: tikv.get(b"k", 1), TiKVError)
        ends(lambda: list(tikv.scan(b"a", b"b", 1)), TiKVError)
        ends(lambda: tikv.mvcc_get(b"k"), TiKVError)
    assert hole.accepted


@pytest.mark.slow
def test_pump(hole: BlackHole) -> None:
    with PumpReader(f"127.0.0.1:{hole.port}", 7, timeout_s=1) as pump:
        ends(lambda: pump.bounds(1, 2, 100), PumpReadError)
        ends(lambda: list(pump.read(1, 2)), PumpReadError)
        ends(lambda: next(pump.pull(1, silence_s=1)), PumpReadError)
        ends(lambda: check_not_purged(pump, 1 << 40), PumpReadError)
    assert hole.accepted


def test_spark(hole: BlackHole) -> None:
    assert str(hole.port) in ends(
        lambda: spark_session.attach(Spark(f"sc://127.0.0.1:{hole.port}"), "test", timeout_s=1),
        SparkUnavailableError,
    )
    assert hole.accepted


def test_downstream_that_never_greets(hole: BlackHole) -> None:
    session = MySQLSession(
        Downstream("127.0.0.1", hole.port, connect_timeout_s=1, read_timeout_s=300)
    )
    began = time.monotonic()
    ends(session.connect, DownstreamError)
    assert time.monotonic() - began < 100
    assert hole.accepted


def test_downstream_that_stops_answering(mariadb: MariaDBServer) -> None:
    session = MySQLSession(
        Downstream("127.0.0.1", mariadb.port, connect_timeout_s=10, read_timeout_s=1)
    )
    session.connect()
    with pytest.raises(DownstreamError) as caught:
        session.query("SELECT SLEEP(20)")
    assert caught.value.transient
    session.close()


def test_downstream_may_take_longer_for_a_statement_than_for_the_handshake(
    mariadb: MariaDBServer,
) -> None:
    session = MySQLSession(
        Downstream("127.0.0.1", mariadb.port, connect_timeout_s=3, read_timeout_s=60)
    )
    session.connect()
    assert session.query("SELECT SLEEP(3.5)") == [(0,)]
    session.close()


def written(sink: ByteWriter) -> None:
    with sink:
        sink.write(b"something")


@pytest.mark.slow
def test_relay_log_in_an_object_store(hole: BlackHole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr("sluice.relay.storage._object_store.CALL_TIMEOUT_S", 0.5)
    url = f"s3://bucket/relay?region=r&endpoint_override=127.0.0.1:{hole.port}&scheme=http"
    storage = open_storage(url)
    calls: list[Callable[[], Any]] = [
        lambda: storage.read("a"),
        lambda: storage.names("a"),
        lambda: storage.create("a", b""),
        lambda: storage.replace("a", b""),
        lambda: written(storage.new_file("a")),
        lambda: storage.open("a"),
        lambda: storage.remove("a"),
        lambda: RelayLog(storage).last(),
    ]
    for call in calls:
        assert url in ends(call, TimeoutError)
    assert hole.accepted


@pytest.mark.slow
def test_status_of_a_pipeline_none_of_whose_parts_answers(hole: BlackHole, tmp_path: Path) -> None:
    settings = Settings(
        Upstream(f"http://127.0.0.1:{hole.port}"),
        Relay(f"file://{tmp_path}"),
        Downstream("127.0.0.1", hole.port, connect_timeout_s=1),
    )
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(status(settings)), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert found and "upstream" in found[0]["errors"]
