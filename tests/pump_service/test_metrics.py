"""`/metrics`: the original's names, labels and buckets, and figures that follow the pump's work."""

import dataclasses
import http.server
import threading
import time

import grpc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.histogram import Histogram, SizeHistogram, doubling_bounds
from sluice.pump_service.metrics import PumpMetrics, exposition
from sluice.pump_service.store import Store
from sluice.tidb.etcd import NodeStatus
from tests.ports import free_port
from tests.pump_service.pumpkit import Client, Site, binlog
from tests.pump_service.storekit import BASE, OPTIONS, eventually, stalled_index, write
from tests.pump_service.storekit import prewrite as prewrite_record

_HOUR = 3_600_000 << 18

# Name, type and labels of every metric of the original's pump.
_ORIGINALS = {
    "binlog_pump_rpc_duration_seconds": (
        "histogram",
        {"method": {"WriteBinlog"}, "label": {"succ", "fail"}},
    ),
    "binlog_pump_loss_binlog_count": ("counter", {}),
    "binlog_pump_storage_gc_ts": ("gauge", {}),
    "binlog_pump_storage_done_gc_ts": ("gauge", {}),
    "binlog_pump_storage_deleted_kv_total": ("counter", {}),
    "binlog_pump_storage_storage_size_bytes": ("gauge", {"type": {"capacity", "available"}}),
    "binlog_pump_storage_max_commit_ts": ("gauge", {}),
    "binlog_pump_storage_query_tikv_count": ("counter", {}),
    "binlog_pump_storage_error_count": (
        "counter",
        {
            "type": {
                "write_binlog",
                "write_binlog_batch",
                "read_value",
                "feed_pre_write_value",
                "batch_write_kv",
            }
        },
    ),
    "binlog_pump_storage_write_binlog_size": ("histogram", {"type": {"single", "batch"}}),
    "binlog_pump_storage_write_binlog_duration_time": (
        "histogram",
        {"type": {"single", "batch", "to_disk", "rotate", "fsync"}},
    ),
    "binlog_pump_storage_slow_chaser_count": (
        "counter",
        {"type": {"turned_on", "turned_off", "recovery", "catch_up"}},
    ),
    "binlog_drainer_slow_chaser_catchup_time_seconds": ("histogram", {}),
}
_BUCKETS = {
    "binlog_pump_rpc_duration_seconds": doubling_bounds(0.00005, 18),
    "binlog_pump_storage_write_binlog_size": doubling_bounds(16, 25),
    "binlog_pump_storage_write_binlog_duration_time": doubling_bounds(0.00005, 20),
    "binlog_drainer_slow_chaser_catchup_time_seconds": doubling_bounds(0.001, 22),
}


def _parse(text):
    """Sample -> value as it stands there: `name{a="b",c="d"}`.

    The library's parser would make other names of counters.
    """
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {sample: float(value) for sample, value in lines}


def _scrape(pump):
    return _parse(httpx.get(f"http://{pump.address}/metrics", timeout=60).text)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.close()


@pytest.fixture(scope="module")
def pump(site):
    return site.pump("metrics", "-gc", "1h", "-fake-binlog-interval", "3600")


def test_every_metric_of_the_original_is_there_under_its_name_with_its_type_labels_and_buckets(
    site, pump
):
    client = Client(pump.address)
    client.transaction(site.pd, b"x")
    with pytest.raises(grpc.RpcError):
        client.write(b"garbage")
    text = httpx.get(f"http://{pump.address}/metrics", timeout=60).text
    types = dict(
        line.split(" ")[2:] for line in text.splitlines() if line.startswith("# TYPE binlog_")
    )
    samples = _parse(text)
    for name, (kind, labels) in _ORIGINALS.items():
        assert types[name] == kind, name
        own = {
            key for key in samples if key == name or key.startswith((name + "{", name + "_count"))
        }
        assert own, f"{name} has no samples"
        for label, values in labels.items():
            assert all(any(f'{label}="{value}"' in key for key in own) for value in values), (
                name,
                label,
            )
    for name, bounds in _BUCKETS.items():
        found = [key for key in samples if key.startswith(f"{name}_bucket")]
        shown = {float(key.split('le="')[1].split('"')[0]) for key in found}
        assert shown == {*bounds, float("inf")}, name


def test_histograms_count_every_record_and_its_size(site, pump):
    def figures():
        found = _scrape(pump)
        size, seconds = (
            f"binlog_pump_storage_write_binlog_{name}" for name in ("size", "duration_time")
        )
        return {
            "records": found[f'{size}_count{{type="single"}}'],
            "bytes": found[f'{size}_sum{{type="single"}}'],
            "batch bytes": found[f'{size}_sum{{type="batch"}}'],
            "small": found[f'{size}_bucket{{le="64.0",type="single"}}'],
            "timed": found[f'{seconds}_count{{type="single"}}'],
            "batches": found[f'{seconds}_count{{type="batch"}}'],
            "syncs": found[f'{seconds}_count{{type="fsync"}}'],
            "writes": found[f'{seconds}_count{{type="to_disk"}}'],
        }

    client = Client(pump.address)
    before = figures()
    payloads = [binlog(0, start := site.pd.ts(), value=b"v" * 1000), binlog(1, start, site.pd.ts())]
    for payload in payloads:
        client.write(payload)
    gained = {key: value - before[key] for key, value in figures().items()}
    assert gained["timed"] == gained["records"] == 2
    assert gained["small"] == 1
    assert gained["bytes"] == sum(map(len, payloads))
    assert gained["batch bytes"] == gained["bytes"]
    assert gained["batches"] == gained["syncs"] == gained["writes"] == gained["records"]


def test_failed_calls_are_counted_as_lost_binlogs(site, pump):
    before = _scrape(pump)["binlog_pump_loss_binlog_count"]
    client = Client(pump.address)
    with pytest.raises(grpc.RpcError):
        client.write(b"garbage")
    assert _scrape(pump)["binlog_pump_loss_binlog_count"] == before + 1


def test_gc_moves_gc_ts_and_done_gc_ts_in_ms_up_to_the_slowest_drainer_and_reports_it(site, pump):
    client = Client(pump.address)
    now = site.pd.ts()
    client.write(binlog(0, now - 3 * _HOUR))
    client.write(binlog(1, now - 3 * _HOUR, now - 3 * _HOUR + 1))
    client.transaction(site.pd, b"young")
    position = now - 2 * _HOUR
    site.registry.update_drainer(
        NodeStatus("slow", "127.0.0.1:1", state="paused", max_commit_ts=position)
    )
    site.registry.update_drainer(
        NodeStatus("fine", "127.0.0.1:1", state="paused", max_commit_ts=now)
    )
    site.registry.update_drainer(
        NodeStatus("gone", "127.0.0.1:1", state="offline", max_commit_ts=5)
    )

    def triggered(gc_ms):
        assert (
            httpx.post(f"http://{pump.address}/debug/gc/trigger", timeout=60).text
            == "trigger gc success\n"
        )
        end = time.monotonic() + 60
        while (found := _scrape(pump))["binlog_pump_storage_done_gc_ts"] < gc_ms:
            assert time.monotonic() < end, pump.text()
            time.sleep(0.05)
        return found

    found = triggered(position >> 18)
    assert (
        found["binlog_pump_storage_gc_ts"]
        == found["binlog_pump_storage_done_gc_ts"]
        == position >> 18
    )
    purge = "binlog_pump_detected_drainer_binlog_purge_count"
    end = time.monotonic() + 60
    while f'{purge}{{id="slow"}}' not in found:  # checked just after the round
        assert time.monotonic() < end
        found = _scrape(pump)
    assert {key for key in found if key.startswith(purge)} == {f'{purge}{{id="slow"}}'}
    assert "drainer slow (paused) is at commit ts" in pump.text()

    site.registry.update_drainer(
        NodeStatus("slow", "127.0.0.1:1", state="offline", max_commit_ts=position)
    )
    hour_ago = (now >> 18) - 3_600_000
    found = triggered(hour_ago)
    assert hour_ago <= found["binlog_pump_storage_gc_ts"] < hour_ago + 60_000
    # What was purged can't be pulled any more, and isn't silently left out.
    with pytest.raises(grpc.RpcError, match="has been purged"):
        client.pull_commits(now - 3 * _HOUR, 1)


def test_a_nearly_full_disk_refuses_transactions_and_probes_in_the_originals_words_but_takes_fakes(
    site, tmp_path
):
    settings = tmp_path / "pump.toml"
    settings.write_text('[storage]\nstop-write-at-available-space = "8000 pib"\n')
    pump = site.pump("full", "-config", str(settings), "-fake-binlog-interval", "0.3")
    client = Client(pump.address)
    for refused in (binlog(0, site.pd.ts()), binlog(1, site.pd.ts(), site.pd.ts()), b""):
        with pytest.raises(grpc.RpcError) as caught:
            client.write(refused)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        available = (
            caught.value.details().removeprefix("no available space, available: ").split(",")[0]
        )
        limit = 8000 << 50
        assert (
            caught.value.details()
            == f"no available space, available: {available}, StopWriteAtAvailableSpace: {limit}"
        )
    found = _scrape(pump)
    assert found["binlog_pump_storage_writable"] == 0
    assert found['binlog_pump_storage_storage_size_bytes{type="available"}'] > 0
    assert found['binlog_pump_storage_error_count{type="write_binlog"}'] == 2
    ts = site.pd.ts()
    stream = client.pull(ts)
    assert next(stream).entity.meta.commitTs > ts, "no fake binlog was written"
    stream.cancel()


def test_a_failed_disk_shows_in_the_errors(site):
    pump = site.pump("broken", start=False)
    pump.env["SLUICE_FAILPOINTS"] = "vlog.fsync=error@2"
    pump.start()
    client = Client(pump.address)
    with pytest.raises(grpc.RpcError):
        client.write(binlog(0, site.pd.ts()))
    found = _scrape(pump)
    assert found['binlog_pump_storage_error_count{type="write_binlog_batch"}'] == 1
    assert found["binlog_pump_storage_failed"] == 1
    assert found["binlog_pump_storage_writable"] == 0


@pytest.mark.slow
def test_metrics_are_added_to_a_pushgateway_under_job_and_instance(site):
    got = []

    class Gateway(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.send_response(202)
            self.end_headers()
            got.append((self.path, body))

        def log_message(self, *_):
            pass

    port = free_port()
    pump = site.pump("pushed", "-metrics-addr", f"127.0.0.1:{port}", "-metrics-interval", "1")
    end = time.monotonic() + 60
    while "can't push metrics to" not in pump.text():  # the gateway is away, the pump goes on
        assert time.monotonic() < end
        time.sleep(0.1)
    gateway = http.server.HTTPServer(("127.0.0.1", port), Gateway)
    threading.Thread(target=gateway.serve_forever, daemon=True).start()
    while not got:
        assert time.monotonic() < end
        time.sleep(0.05)
    gateway.shutdown()
    gateway.server_close()
    path, body = got[0]
    assert path == f"/metrics/job/binlog/instance/{pump.node_id}"
    assert 'binlog_pump_storage_error_count{type="read_value"} 0.0' in body
    assert "# TYPE binlog_pump_storage_error_count counter" in body


def test_a_stalled_index_counts_its_turns_and_times_the_catching_up(tmp_path):
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, kv_chan_cap=100))
    metrics = PumpMetrics()
    metrics.watch_store(store)

    def shown():
        found = _parse(exposition(metrics.registry).decode())
        chaser = "binlog_pump_storage_slow_chaser_count"
        turns = {
            kind: found[f'{chaser}{{type="{kind}"}}']
            for kind in ("turned_on", "turned_off", "recovery")
        }
        passes = found[f'{chaser}{{type="catch_up"}}']
        return turns, passes, found["binlog_drainer_slow_chaser_catchup_time_seconds_count"]

    assert shown() == (dict.fromkeys(("turned_on", "turned_off", "recovery"), 0), 0, 0)
    with stalled_index(store):
        for first in range(0, 400, 20):
            write(store, *(prewrite_record(BASE + number) for number in range(first, first + 20)))
        eventually(lambda: store.stats().slow_index_count == 1)
    assert store.wait_caught_up(60)
    turns, passes, timed = shown()
    assert turns == dict.fromkeys(("turned_on", "turned_off", "recovery"), 1)
    assert passes == timed >= 1
    store.close()
    again = Store.open(tmp_path, OPTIONS)  # what a start has to index again is no slow index
    assert again.wait_caught_up(60)
    stats = again.stats()
    assert (stats.slow_index_count, stats.slow_index_ends, stats.catch_ups) == (0, 0, 0)
    again.close()


def test_each_rotation_of_the_value_log_is_timed(tmp_path):
    store = Store.open(tmp_path, dataclasses.replace(OPTIONS, segment_limit=1000))
    for number in range(20):
        write(store, prewrite_record(BASE + number, b"v" * 200))
    assert sum(store.timings.rotate.read()[0]) == store.stats().segments - 1 > 0
    store.close()


@given(st.lists(st.lists(st.integers(0, 2**40), max_size=50), max_size=20))
def test_sizes_counted_in_batches_are_counted_like_single_ones(batches):
    bounds = doubling_bounds(16, 25)
    single, together = Histogram(bounds), SizeHistogram(bounds)
    for batch in batches:
        together.observe_all(batch)
        for value in batch:
            single.observe(value)
    assert together.read() == single.read()


def test_more_distinct_sizes_than_are_kept_are_all_counted():
    sizes = SizeHistogram(doubling_bounds(16, 25))
    for first in range(0, 20_000, 500):
        sizes.observe_all(range(first, first + 500))
    counts, total = sizes.read()
    assert (sum(counts), total) == (20_000, sum(range(20_000)))
    assert counts[0] == 17  # a bound belongs to its bucket
