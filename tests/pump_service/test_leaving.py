"""A pump that goes offline takes no Prewrite with it; a pump in this process, etcd, PD."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pump_service.config import Config
from pump_service.server import Pump
from pump_service.store import StoreOptions
from tests.pump_service.pumpkit import Client, Site, binlog, free_port


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_prewrite_that_the_grpc_server_has_admitted_is_waited_for(site, tmp_path, monkeypatch):
    address = f"127.0.0.1:{free_port()}"
    storage = StoreOptions(stop_write_at_available_space=0)
    pump = Pump(
        Config(
            addr=address,
            advertise_addr=address,
            pd_urls=site.pd.url,
            data_dir=str(tmp_path / "pump"),
            storage=storage,
            node_id="leaving",
        )
    )
    pump.start()
    client = Client(address)
    client.channel.unary_unary("/binlog.Cistern/Notify")(b"")  # such a connection is the grpc server's from then on
    ingest, admitted, goes_on, looked = pump._rpc._ingest, threading.Event(), threading.Event(), []
    submit, wait_safe = ingest.submit, pump._chores.wait_safe_to_offline

    def slowly(*records, **how):
        admitted.set()
        assert goes_on.wait(60)
        submit(*records, **how)

    def looks(hurry):
        looked.append(goes_on.is_set())
        return wait_safe(hurry)

    monkeypatch.setattr(ingest, "submit", slowly)
    monkeypatch.setattr(pump._chores, "wait_safe_to_offline", looks)
    start = site.pd.ts()
    with ThreadPoolExecutor(1) as threads:
        prewrite = threads.submit(client.write, binlog(0, start))
        assert admitted.wait(60)
        pump.leave("close")
        assert pump._noticed.wait(60)
        time.sleep(0.2)  # it would look by now
        goes_on.set()
        prewrite.result(60)
    with pytest.raises(grpc.RpcError, match="no online"):
        client.write(binlog(0, site.pd.ts()))
    client.write(binlog(1, start, site.pd.ts()))
    assert pump.wait(60)
    client.close()
    assert looked == [True]
    assert site.registry.get_pump("leaving").state == "offline"
