"""Landing and copies stop at a TiDB that writes no binlogs, unless a pump captures its changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.landing import NoBinlogsError, pumps_to_read, server_without_binlogs
from sluice.etl.landing._cluster import UpstreamCluster
from sluice.etl.landing.start_position import BinlogsEndedError, resume_from_log
from sluice.etl.settings import Upstream
from sluice.relay import RelayLog
from sluice.tidb import EtcdClient, NodeStatus
from sluice.tidb.etcd.pump_registry import CAPTURED_LABEL
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


def test_a_setting_prevents_the_switch_to_captured_changes_and_forces_it() -> None:
    both = (BINLOGS, CAPTURE)
    assert pumps_to_read(both, "", "binlog") == [BINLOGS]
    assert pumps_to_read(both, "", "capture") == [CAPTURE]
    with pytest.raises(NoBinlogsError, match='source is "binlog"'):
        pumps_to_read(both, "TiDB h:4000, version 'v8.5.1',", "binlog")
    with pytest.raises(NoBinlogsError, match='source is "capture"') as raised:
        pumps_to_read((BINLOGS, GONE), "", "capture")
    assert "`sluice pump -capture`" in raised.value.hint


def test_binlogs_are_not_read_behind_captured_changes(tmp_path: Path) -> None:
    relay = RelayLog.open((tmp_path / "relay").as_uri())
    cluster = UpstreamCluster(Upstream("http://127.0.0.1:1", source="binlog"))
    try:
        assert resume_from_log(relay, cluster) is None
        relay.known_pumps.change(lambda seen: replace(seen, is_captured=True))
        with pytest.raises(BinlogsEndedError, match='source is "binlog"') as raised:
            resume_from_log(relay, cluster)
        assert not raised.value.transient
    finally:
        cluster.close()
