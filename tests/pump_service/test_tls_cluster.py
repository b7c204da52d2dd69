"""A cluster that speaks TLS throughout: PD, pump, drainer and clients, and all certificates
replaced while it runs.
"""

import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest

from sluice.etl.landing.extract import read_range
from sluice.etl.landing.planner import WindowPlanner
from sluice.etl.settings import SettingsError, Upstream, Window
from sluice.tidb import TLS, EtcdClient, NodeStatus, PDClient, PumpClient, PumpReader, Registry, pb
from tests.ports import free_port
from tests.pump_service.authority import Authority
from tests.pump_service.pumpkit import CLUSTER, PD, Client, Site, binlog


class _Pki:
    """Certificates of one authority; a new one in the same folder replaces its files."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self._authority = Authority(folder)
        self.ca = self._authority.path
        self.pump, self.pump_key = self._authority.issue("pump", "pump")

    def tls(self, common_name):
        cert, key = self._authority.issue(common_name, f"client-{common_name}")
        return TLS.from_settings(str(self.ca), str(cert), str(key))

    def server(self):
        pair = (self.pump_key.read_bytes(), self.pump.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)


class _Drainer:
    """A Drainer's side of Notify, over TLS."""

    def __init__(self, site, credentials):
        self.told = threading.Event()
        self.port = free_port()
        self.server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self._notify, pb.pump.NotifyReq.FromString, pb.pump.NotifyResp.SerializeToString
        )
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("binlog.Cistern", {"Notify": handler}),)
        )
        self.server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        self.server.start()
        self.status = NodeStatus("drainer", f"127.0.0.1:{self.port}")
        site.registry.update_drainer(self.status)

    def _notify(self, _request, _context):
        self.told.set()
        return pb.pump.NotifyResp()


def _until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it didn't come to pass"
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.close()


def _pump(site, pki, folder, *flags):
    """A pump with client certificates everywhere, ready."""
    settings = folder / "pump.toml"
    settings.write_text(
        f'[security]\nssl-ca = "{pki.ca}"\nssl-cert = "{pki.pump}"\nssl-key = "{pki.pump_key}"\n'
        'cert-allowed-cn = ["TiDB", "sluice"]\n'
    )
    pump = site.pump(
        "secure", "-config", str(settings), "-heartbeat-interval", "0.2", *flags, start=False
    )
    pump.launch()
    _until(lambda: "serves cluster" in pump.text() or pump.process.poll() is not None)
    assert pump.process.poll() is None, pump.text()
    return pump


def _over(pd, credentials):
    """The same PD from now on with these certificates."""
    pd.stop()
    pd.credentials = credentials
    pd.start()


def _write(pd, tls):
    """One transaction as TiDB writes it, everything over TLS: PD, registry and pump."""
    with PumpClient(pd.url, tls=tls) as client:
        start, commit = pd.ts(), 0
        client.prewrite(start, binlog(0, start, value=b"over TLS"))
        commit = pd.ts()
        client.finish(start, binlog(1, start, commit))
    return commit


def _planned_and_read(upstream, after_ts):
    """Commits after `after_ts` as landing finds them, with the TLS of its settings."""
    tls = upstream.tls()
    with PDClient(upstream.pd_urls, tls=tls) as pd, EtcdClient(upstream.pd_urls, tls=tls) as etcd:
        planner = WindowPlanner(CLUSTER, Window(), pd.tso, Registry(etcd).pumps, tls)
        plan = planner.plan(after_ts)
        planner.close()
    batches = [
        batch
        for part in plan.ranges
        for batch in read_range(part.host, CLUSTER, part.lo, part.hi, tls)
    ]
    return [ts for batch in batches for ts in batch.column("commit_ts").to_pylist()]


@pytest.mark.slow
def test_everything_goes_over_tls_and_new_certificates_need_no_restart(site, tmp_path):
    pki = _Pki(tmp_path / "pki")
    site.pd.stop()
    site.pd = PD(site.etcd.port, credentials=pki.server())
    drainer = _Drainer(site, pki.server())
    local = tmp_path / "local.sock"
    pump = _pump(site, pki, tmp_path, "-socket", str(local))
    assert drainer.told.is_set(), "the drainer was not told over TLS"
    tidb, pipeline = pki.tls("TiDB"), pki.tls("sluice")
    commit = _write(site.pd, tidb)
    with PumpReader(pump.address, CLUSTER, tls=pipeline) as reader:
        _until(lambda: reader.bounds(commit - 1, commit, 1000).hi >= commit)
        batches = list(reader.read(commit - 1, commit))
    assert [batch.column("commit_ts").to_pylist() for batch in batches] == [[commit]]
    assert _planned_and_read(
        Upstream(
            site.pd.url,
            ssl_ca=str(pipeline.ca),
            ssl_cert=str(pipeline.cert),
            ssl_key=str(pipeline.key),
        ),
        commit - 1,
    ) == [commit]
    with (
        grpc.secure_channel(pump.address, pki.tls("nobody").credentials()) as channel,
        pytest.raises(grpc.RpcError),
    ):
        channel.unary_unary("/binlog.Pump/WriteBinlog")(b"", timeout=3)
    Client(f"unix:{local}").transaction(site.pd, b"names are asked for on the port only")

    # All certificates are replaced, by those of another authority.
    with PDClient(site.pd.url, tls=tidb) as pd, EtcdClient(site.pd.url, tls=tidb) as etcd:
        before = pd.tso()
        new = _Pki(tmp_path / "pki")
        new.tls("TiDB")
        _over(site.pd, new.server())
        assert pd.tso() > before
        assert etcd.get("/tidb-binlog/v1/pumps/" + pump.node_id) is not None
    beaten = site.entry(pump).update_ts
    _until(lambda: site.entry(pump).update_ts > beaten)
    assert _write(site.pd, tidb) > commit
    context = ssl.create_default_context(cafile=str(new.ca))
    # the certificates are as simple as many are: no key identifiers
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(tidb.cert, tidb.key)
    assert httpx.get(f"https://{pump.address}/status", verify=context).json()["ErrMsg"] == ""
    drainer.server.stop(0).wait()
    assert pump.terminate() == 0
    assert site.entry(pump).state == "paused"


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        pytest.param("ca", "ca.pem", marks=pytest.mark.slow),
        pytest.param("key", "pump.key", marks=pytest.mark.slow),
        ("broken", "can't be used"),
    ],
)
def test_certificates_that_can_t_be_read_stop_the_start_and_are_named(
    site, tmp_path, missing, named
):
    pki = _Pki(tmp_path / "pki")
    if missing == "ca":
        pki.ca.unlink()
    elif missing == "key":
        pki.pump_key.unlink()
    else:
        Path(pki.pump).write_text("no certificate")
    settings = tmp_path / "pump.toml"
    # else PD would be asked over TLS first
    ca = f'ssl-ca = "{pki.ca}"\n' if missing == "ca" else ""
    settings.write_text(f'[security]\n{ca}ssl-cert = "{pki.pump}"\nssl-key = "{pki.pump_key}"\n')
    pump = site.pump("insecure", "-config", str(settings), start=False)
    pump.launch()
    assert pump.process.wait(60) == 2
    line = next(line for line in pump.text().splitlines() if line.startswith("pump: "))
    assert named in line


def test_tls_settings_that_don_t_go_together_are_refused(tmp_path):
    pki = _Pki(tmp_path / "pki")
    assert TLS.from_settings("") is None
    with pytest.raises(ValueError, match="go together"):
        TLS.from_settings(str(pki.ca), str(pki.pump))
    with pytest.raises(ValueError, match="need ssl-ca"):
        TLS.from_settings("", str(pki.pump), str(pki.pump_key))
    with pytest.raises(FileNotFoundError, match="nothing\\.pem"):
        TLS.from_settings(str(tmp_path / "nothing.pem"))


def test_settings_name_certificate_files_that_are_missing_or_half_given(tmp_path):
    with pytest.raises(SettingsError, match="nowhere"):
        Upstream("pd", ssl_ca="/nowhere.pem").tls()
    with pytest.raises(SettingsError, match="go together"):
        Upstream("pd", ssl_ca="/nowhere.pem", ssl_cert="x").tls()
    assert Upstream("pd").tls() is None
