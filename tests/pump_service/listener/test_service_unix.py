"""`socket`: the same calls on a Unix socket, for a TiDB on the same host (its `binlog-socket`)."""

import socket
import time

import grpc
import pytest

from sluice.tidb import pb
from tests.pump_service.authority import Authority
from tests.pump_service.pumpkit import CLUSTER, Client, Site, binlog, request


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.close()


def _wait(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.quick_cases("unix")
@pytest.mark.parametrize("prefix", ["", "unix://"])
def test_tidb_may_write_and_drainers_read_on_the_unix_socket(site, tmp_path, prefix):
    path = tmp_path / "pump.sock"
    pump = site.pump(f"unix{len(prefix)}", "-socket", f"{prefix}{path}")
    local = Client(f"unix:{path}")
    start, commit = local.transaction(site.pd, b"by socket")
    for client in (local, Client(pump.address)):
        assert [one.start_ts for one in client.pull_commits(commit - 1, 1)] == [start]
    bounds = local.channel.unary_unary(
        "/sluice.Window/Bounds",
        pb.window.BoundsRequest.SerializeToString,
        pb.window.BoundsResponse.FromString,
    )
    assert bounds(pb.window.BoundsRequest(cluster_id=CLUSTER, lo=commit), timeout=60).hi >= commit
    assert pump.terminate() == 0
    assert not path.exists(), "the socket outlived its pump"


@pytest.mark.slow
def test_a_killed_pump_s_socket_is_taken_over_and_a_living_one_s_is_not(site, tmp_path):
    path = tmp_path / "pump.sock"
    first = site.pump("killed", "-socket", str(path))
    first.kill()
    assert path.exists()
    first.start()
    Client(f"unix:{path}").transaction(site.pd, b"")
    second = site.pump("second", "-socket", str(path), start=False)
    second.launch()
    assert second.process.wait(60) == 2
    assert (
        f"pump: can't listen on {path} (setting socket): another process listens there"
        in second.text()
    )
    Client(f"unix:{path}").transaction(site.pd, b"the first goes on")


def test_a_socket_that_can_t_be_made_is_an_error_that_names_the_setting(site, tmp_path):
    pump = site.pump(
        "nowhere", "-socket", str(tmp_path / "no" / "folder" / "pump.sock"), start=False
    )
    pump.launch()
    assert pump.process.wait(60) == 2
    assert "(setting socket): No such file or directory" in pump.text()


def test_the_unix_socket_needs_no_certificate_where_the_port_does(site, tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("pump", "pump")
    path = tmp_path / "pump.sock"
    settings = tmp_path / "pump.toml"
    # TLS for the port alone: without ssl-ca the pump's own connections stay as they are.
    settings.write_text(f'socket = "{path}"\n[security]\nssl-cert = "{cert}"\nssl-key = "{key}"\n')
    pump = site.pump("mixed", "-config", str(settings), start=False)
    pump.launch()
    _wait(lambda: path.exists() and _accepts(path))
    Client(f"unix:{path}").transaction(site.pd, b"")
    with pytest.raises(grpc.RpcError):
        Client(pump.address).write(binlog(0, site.pd.ts()), timeout=2)
    secure = grpc.secure_channel(
        pump.address, grpc.ssl_channel_credentials(authority.path.read_bytes())
    )
    write = secure.unary_unary("/binlog.Pump/WriteBinlog")
    assert write(request(binlog(2, site.pd.ts())), timeout=60) == b""


def _accepts(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
