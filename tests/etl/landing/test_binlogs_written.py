"""Landing and copies stop at a TiDB that writes no binlogs, unless a pump captures its changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.etl.landing import NoBinlogsError, pumps_to_read, server_without_binlogs
from sluice.tidb import EtcdClient, NodeStatus
from sluice.tidb.etcd.registry import CAPTURED_LABEL
from tests.pump_service.pumpkit import Etcd

BINLOGS = NodeStatus("a", "h:1")
CAPTURE = NodeStatus("c", "h:2", label={CAPTURED_LABEL: "7"})
GONE = NodeStatus("c", "h:2", "offline", label={CAPTURED_LABEL: "7"})


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdClient]:
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    with EtcdClient(f"http://127.0.0.1:{server.port}") as client:
        yield client
    server.stop()


def register(etcd: EtcdClient, version: str, *, is_alive: bool = True) -> None:
    place = "/topology/tidb/10.0.0.1:4000"
    etcd.put(f"{place}/info", b'{"version": "%s"}' % version.encode())
    if is_alive:
        etcd.put(f"{place}/ttl", b"1")
    else:
        etcd.delete(f"{place}/ttl")


@pytest.mark.parametrize("pumps", [(), (BINLOGS,), (BINLOGS, GONE)])
def test_what_a_tidb_without_binlogs_commits_is_not_passed_over(
    etcd: EtcdClient, pumps: tuple[NodeStatus, ...]
) -> None:
    register(etcd, "8.0.11-TiDB-v8.5.1")
    server = server_without_binlogs(etcd)
    with pytest.raises(NoBinlogsError, match=r"10\.0\.0\.1:4000, .*v8\.5\.1") as raised:
        pumps_to_read(pumps, server)
    assert "`sluice capture --check`" in raised.value.hint
    # A pump that began later must not be waited for by binlogs, in which its changes aren't.
    assert pumps_to_read((BINLOGS, CAPTURE), server) == [CAPTURE]


@pytest.mark.parametrize(
    ("version", "is_alive"),
    [("8.0.11-TiDB-v8.3.0", True), ("5.7.25-TiDB-none", True), ("8.0.11-TiDB-v9.0.0", False)],
)
def test_older_versions_and_servers_that_are_gone_are_no_obstacle(
    etcd: EtcdClient, version: str, is_alive: bool
) -> None:
    register(etcd, version, is_alive=is_alive)
    assert pumps_to_read((BINLOGS, CAPTURE), server_without_binlogs(etcd)) == (BINLOGS, CAPTURE)
