"""When a TiDB counts as gone: only if there is no doubt about which one it was and that it doesn't
live.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from sluice.pump_service.cluster import ClientConnection, ClientLiveness
from sluice.pump_service.cluster import client_liveness as module
from sluice.tidb.etcd import EtcdClient, TiDBServer, tidb_servers
from tests.pump_service.pumpkit import Etcd
from tests.pump_service.storekit import BASE, commit, prewrite

ONE, TWO = TiDBServer("10.0.0.1:4000", 100), TiDBServer("10.0.0.1:4001", 100)
AWAY = TiDBServer("10.0.0.2:4000", 100)


class Topology:
    """What etcd has; `None`: it can't be asked."""

    def __init__(self, *servers: TiDBServer) -> None:
        self.servers: tuple[TiDBServer, ...] | None = servers

    def __call__(self) -> tuple[TiDBServer, ...]:
        if self.servers is None:
            raise OSError("etcd is away")
        return self.servers


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISCONNECT_GRACE_S", 0.0)
    monkeypatch.setattr(module, "_RECENT_S", 0.0)


def sent_by(origins: ClientLiveness, ip: str) -> ClientConnection:
    """A connection that sent a Prewrite, and etcd was looked at."""
    origin = origins.connect(ip)
    origins.record_prewrites([prewrite(BASE)], origin)
    origins._poll_servers()
    return origin


@pytest.mark.parametrize("ip", ["10.0.0.1", "::ffff:10.0.0.1"])
def test_it_is_gone_when_its_connection_is_closed_and_etcd_has_it_no_more(ip: str) -> None:
    etcd = Topology(ONE, AWAY)
    origins = ClientLiveness(etcd, lambda start_ts: True)
    origin = sent_by(origins, ip)
    assert not origins.is_gone(BASE)
    etcd.servers = (AWAY,)
    assert not origins.is_gone(BASE)  # it is connected
    origin.close()
    assert origins.is_gone(BASE)
    etcd.servers = (ONE, AWAY)
    assert not origins.is_gone(BASE)  # it only lost its connection


def test_a_new_process_at_its_address_says_that_it_is_gone() -> None:
    etcd = Topology(ONE)
    origins = ClientLiveness(etcd, lambda start_ts: True)
    sent_by(origins, "10.0.0.1").close()
    etcd.servers = (ONE._replace(started=101),)
    assert origins.is_gone(BASE)
    etcd.servers = (ONE._replace(started=0),)  # nobody knows when that one began
    assert not origins.is_gone(BASE)


@pytest.mark.parametrize(
    ("then", "now", "ip"),
    [
        ((ONE, TWO), (TWO,), "10.0.0.1"),  # which of the two was it?
        ((ONE,), (TWO._replace(started=200),), "10.0.0.1"),  # one that etcd didn't have
        ((AWAY,), (), "10.0.0.1"),  # a proxy
        ((), (), "10.0.0.1"),
        ((TiDBServer("no-such-name.invalid:4000", 1),), (), "10.0.0.1"),
        ((ONE,), None, "10.0.0.1"),  # etcd is away
    ],
)
def test_in_doubt_nobody_is_gone(
    then: tuple[TiDBServer, ...], now: tuple[TiDBServer, ...] | None, ip: str
) -> None:
    etcd = Topology(*then)
    origins = ClientLiveness(etcd, lambda start_ts: True)
    origin = sent_by(origins, ip)
    origin.close()
    etcd.servers = now
    assert not origins.is_gone(BASE)


def test_all_of_a_host_that_died_are_gone() -> None:
    etcd = Topology(ONE, TWO)
    origins = ClientLiveness(etcd, lambda start_ts: True)
    sent_by(origins, "10.0.0.1").close()
    etcd.servers = (ONE._replace(started=300),)
    assert origins.is_gone(BASE)


def test_a_prewrite_of_which_nobody_knows_where_it_came_from_waits() -> None:
    origins = ClientLiveness(Topology(), lambda start_ts: True)
    assert not origins.is_gone(BASE)
    origins.record_prewrites([prewrite(BASE)], None)
    assert not origins.is_gone(BASE)


def test_what_etcd_had_before_the_first_prewrite_does_not_count() -> None:
    """An earlier process at that address may still be there then."""
    etcd = Topology(ONE)
    origins = ClientLiveness(etcd, lambda start_ts: True)
    origin = origins.connect("10.0.0.1")
    origins._poll_servers()
    origins.record_prewrites([prewrite(BASE)], origin)
    origin.close()
    etcd.servers = ()
    assert not origins.is_gone(BASE)


def test_a_name_is_what_it_last_resolved_to(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Topology(TiDBServer("localhost:4000", 1))
    origins = ClientLiveness(etcd, lambda start_ts: True)
    sent_by(origins, "127.0.0.1").close()

    def fails(*_: object) -> None:
        raise OSError("no name server")

    monkeypatch.setattr(module.socket, "getaddrinfo", fails)
    assert not origins.is_gone(BASE)
    etcd.servers = ()
    assert origins.is_gone(BASE)


def test_only_open_prewrites_are_kept_in_mind() -> None:
    waiting = {BASE}
    origins = ClientLiveness(Topology(ONE), waiting.__contains__)
    origin = origins.connect("10.0.0.1")
    origins.record_prewrites([prewrite(BASE), prewrite(BASE + 1), prewrite(BASE + 2)], origin)
    origins.record_prewrites([commit(BASE + 1, BASE + 9)], origins.connect("10.0.0.2"))
    assert set(origins._of) == {BASE, BASE + 2}
    seen = origins._drop_before(set())
    assert origins._drop_before(seen) == {BASE}  # the store never took the other


def test_a_connection_is_given_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISCONNECT_GRACE_S", 3600.0)
    etcd = Topology(ONE)
    origins = ClientLiveness(etcd, lambda start_ts: True)
    sent_by(origins, "10.0.0.1").close()
    etcd.servers = ()
    assert not origins.is_gone(BASE)


# -- what TiDB writes


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdClient]:
    etcd = Etcd(tmp_path_factory.mktemp("etcd"))
    with EtcdClient(f"http://127.0.0.1:{etcd.port}") as made:
        yield made
    etcd.stop()


def test_the_servers_are_those_whose_lease_lives(client: EtcdClient) -> None:
    info = {
        "version": "6.6.0",
        "git_hash": "f4ca082",
        "status_port": 10080,
        "deploy_path": "/",
        "start_timestamp": 1_700_000_000,
    }
    for address in ("10.0.0.1:4000", "[fd00::1]:4000", "tidb-0.tidb.svc:4000", "10.0.0.9:4000"):
        client.put(f"/topology/tidb/{address}/info", json.dumps(info | {"labels": None}).encode())
    for address in ("10.0.0.1:4000", "[fd00::1]:4000", "tidb-0.tidb.svc:4000", "10.0.0.5:4000"):
        client.put(f"/topology/tidb/{address}/ttl", str(time.time_ns()).encode())
    client.put("/topology/tidb/10.0.0.5:4000/info", b"no JSON")
    client.put("/topology/tikv/10.0.0.7:20160/ttl", b"1")
    found = tidb_servers(client)
    assert [(server.host, server.started) for server in found] == [
        ("10.0.0.1", 1_700_000_000),
        ("10.0.0.5", 0),
        ("fd00::1", 1_700_000_000),
        ("tidb-0.tidb.svc", 1_700_000_000),
    ]
