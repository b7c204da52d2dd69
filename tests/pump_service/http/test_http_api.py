"""The HTTP pages on the pump's one address: what binlogctl, TiDB and Prometheus ask for."""

import contextlib
import re
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.tidb import pb
from tests.pump_service.pumpkit import ROOT, Client, Etcd, PumpProcess, Site, binlog


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site"))
    site.pump("http")
    yield site
    site.close()


@pytest.fixture
def http(site):
    with httpx.Client(base_url=f"http://{site.pumps[0].address}", timeout=60) as client:
        yield client


def test_status_is_the_originals_json_with_a_fresh_timestamp(site, http):
    before = site.pd.ts()
    found = http.get("/status").json()
    after = site.pd.ts()
    assert list(found) == ["status", "CommitTS", "Checkpoint", "ErrMsg"]
    assert before < found["CommitTS"] < after
    assert (found["Checkpoint"], found["ErrMsg"]) == ({}, "")
    pump = site.pumps[0]
    mine = found["status"][pump.node_id]
    assert set(mine) == {
        "nodeId",
        "host",
        "state",
        "isAlive",
        "score",
        "label",
        "maxCommitTS",
        "updateTS",
    }
    assert (mine["nodeId"], mine["host"], mine["state"]) == (pump.node_id, pump.address, "online")


def test_drainers_are_listed_as_in_the_registry(site, http):
    assert http.get("/drainers").json() == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/state/another/pause", "invalide nodeID another, this pump's nodeID is {id}"),
        ("/state/{id}/jump", "invalide action jump"),
    ],
)
def test_a_wrong_change_of_state_is_answered_in_the_originals_words(site, http, path, message):
    node = site.pumps[0].node_id
    answer = http.put(path.format(id=node))
    assert answer.status_code == 200
    assert answer.json() == {"message": message.format(id=node), "code": 3, "data": None}
    assert http.get("/status").json()["status"][node]["state"] == "online"


def test_metrics_carry_the_originals_names_and_count_calls(site, http):
    def calls():
        families = {
            family.name: family
            for family in text_string_to_metric_families(http.get("/metrics").text)
        }
        samples = families["binlog_pump_rpc_duration_seconds"].samples if families else []
        return families, sum(
            s.value for s in samples if s.name.endswith("_count") and s.labels["label"] == "succ"
        )

    _, before = calls()
    client = Client(site.pumps[0].address)
    for _ in range(5):
        client.transaction(site.pd, b"")
    families, after = calls()
    assert after - before == 10
    wanted = [
        "gc_ts",
        "max_commit_ts",
        "query_tikv_count",
        "storage_size_bytes",
        "error_count",
        "slow_chaser_count",
    ]
    assert {f"binlog_pump_storage_{name}" for name in wanted} <= set(families)
    buckets = [
        s.labels["le"]
        for s in families["binlog_pump_rpc_duration_seconds"].samples
        if "le" in s.labels
    ]
    assert (buckets[0], float(buckets[17]), buckets[18]) == ("5e-05", 0.00005 * 2**17, "+Inf")
    failed = Client(site.pumps[0].address)
    with pytest.raises(Exception, match="no valid Binlog"):
        failed.write(b"garbage")
    text = http.get("/metrics").text
    assert 'binlog_pump_rpc_duration_seconds_count{label="fail",method="WriteBinlog"} 1.0' in text


def test_a_binlog_can_be_looked_at_by_its_timestamp(site, http):
    client = Client(site.pumps[0].address)
    value = pb.binlog.PrewriteValue(schema_version=77).SerializeToString()
    client.write(binlog(0, start := site.pd.ts(), value=value, key=b""))
    client.write(binlog(1, start, commit := site.pd.ts(), key=b""))
    end = time.monotonic() + 60
    # the index follows the answer
    while f"start_ts: {start}" not in http.get(f"/debug/binlog/{commit}").text:
        assert time.monotonic() < end
    text = http.get(f"/debug/binlog/{start}").text
    assert "tp: Prewrite" in text
    assert "PrewriteValue: schema_version: 77" in text
    assert "PrewriteValue" not in http.get(f"/debug/binlog/{commit}").text
    assert "no binlog at timestamp 5" in http.get("/debug/binlog/5").text
    assert "invalid timestamp" in http.get("/debug/binlog/x").text


@pytest.mark.slow
def test_a_binlog_is_shown_although_tikv_can_t_be_reached(site, http):
    client = Client(site.pumps[0].address)
    client.write(binlog(0, start := site.pd.ts(), key=b"primary"))
    client.write(binlog(2, start))
    end = time.monotonic() + 60
    while "GetMvccByEncodedKey failed: MvccGetByKey: region of key 7072696d617279" not in (
        text := http.get(f"/debug/binlog/{start}").text
    ):
        assert time.monotonic() < end, text
    assert f"start_ts: {start}" in text


@pytest.mark.slow
def test_a_binlog_is_shown_with_what_tikv_knows_of_its_primary_key(tmp_path):
    etcd = Etcd(tmp_path / "etcd")
    command = [
        sys.executable,
        "-m",
        "sluice.devstack.tidb",
        "--etcd",
        f"http://127.0.0.1:{etcd.port}",
    ]
    command += [
        "--listen",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--recording",
        "tests/recordings/orphans",
    ]
    cluster = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pump = None
    try:
        *_, port, _sql, control = re.findall(r"\d+", cluster.stdout.readline())
        pump = PumpProcess(SimpleNamespace(url=f"http://127.0.0.1:{port}"), tmp_path / "mvcc")
        pump.start()
        httpx.post(f"http://127.0.0.1:{control}/replay", json={}, timeout=60).raise_for_status()
        end = time.monotonic() + 60
        while httpx.get(f"http://127.0.0.1:{control}/status", timeout=60).json()["state"] != "done":
            assert time.monotonic() < end
            time.sleep(0.2)
        commits = httpx.get(f"http://127.0.0.1:{control}/commits", timeout=60).json()
        commit_ts = commits[-1][0]
        while "Binlog: " not in (
            text := httpx.get(f"http://{pump.address}/debug/binlog/{commit_ts}", timeout=60).text
        ):
            assert time.monotonic() < end, text
        start_ts = re.search(r"start_ts: (\d+)", text)[1]
        assert f"GetMvccByEncodedKey:\n  put start_ts: {start_ts} commit_ts: {commit_ts}" in text
    finally:
        if pump is not None:
            pump.kill()
        cluster.terminate()
        cluster.wait(60)
        cluster.stdout.close()
        etcd.stop()


def test_garbage_collection_can_be_started(http):
    assert http.post("/debug/gc/trigger").text.strip() in ("trigger gc success", "gc is working")
    assert http.get("/debug/gc/trigger").status_code == 405


def test_the_debug_pages_show_threads_and_memory(http):
    assert "pump-loop" in http.get("/debug/stack").text
    assert http.get("/debug/memory").text.startswith("rss ")
    index = http.get("/debug").text
    for page in ("stack", "memory", "profile", "binlog", "gc/trigger"):
        assert f"/debug/{page}" in index


def test_the_profile_shows_where_the_threads_are(http):
    lines = http.get("/debug/profile?seconds=0.2").text.splitlines()
    assert any(re.search(r"^pump-loop;.*run_forever.* \d+$", line) for line in lines), lines
    wrong = http.get("/debug/profile?seconds=soon")
    assert wrong.status_code == 400
    assert wrong.text == "invalid seconds 'soon': expected a number above 0\n"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Host": "evil.example"}, "unknown host evil.example"),
        ({"Origin": "http://evil.example"}, "pages of http://evil.example may not operate"),
        ({"Origin": "null"}, "pages of null may not operate"),
    ],
)
def test_a_web_page_can_not_operate_the_pump(http, headers, said):
    for method, path in (
        ("PUT", "/state/http/pause"),
        ("PUT", "/verdict/5/rollback"),
        ("POST", "/debug/gc/trigger"),
        ("GET", "/debug/binlog/5"),
    ):
        answer = http.request(method, path, headers=headers)
        assert (answer.status_code, said in answer.text) == (403, True)
    assert http.get("/status", headers=headers).status_code == 200


def test_the_pump_is_operated_by_its_addresses_and_names(http):
    for host in ("localhost:8250", "127.0.0.1", "[::1]:8250", http.base_url.netloc.decode()):
        assert http.put("/verdict/5/rollback", headers={"Host": host}).status_code == 404


def test_a_target_that_is_none_is_answered_400_and_leaves_no_traceback(site):
    host, port = site.pumps[0].address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 60) as sock:
        sock.sendall(b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in site.pumps[0].text()


def test_an_unknown_page_is_404_and_a_wrong_method_405(http):
    assert http.get("/nothing").status_code == 404
    assert http.post("/status").status_code == 405
    assert http.head("/status").status_code == 200


def _talk(site, data, shut=False):
    host, port = site.pumps[0].address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(data)
        if shut:
            sock.shutdown(socket.SHUT_WR)
        out = b""
        while chunk := sock.recv(65536):
            out += chunk
    return out


def test_requests_in_a_row_on_one_connection_are_answered_in_order(site):
    pages = [b"/status", b"/nothing", b"/drainers"]
    data = b"".join(b"GET %s HTTP/1.1\r\nHost: p\r\n\r\n" % page for page in pages[:-1])
    out = _talk(site, data + b"GET /drainers HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
    assert [part[:3] for part in out.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_http_1_0_and_bodies_work(site):
    assert _talk(site, b"GET /drainers HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n[]")
    node = site.pumps[0].node_id.encode()
    body = (
        b"PUT /state/%s/jump HTTP/1.1\r\nHost: p\r\nContent-Length: 3\r\nConnection:"
        b" close\r\n\r\nabc" % node
    )
    assert b"invalide action jump" in _talk(site, body)


def test_a_bad_request_is_answered_and_its_connection_closed(site):
    assert _talk(site, b"GET / HTTP/1.1\r\nbroken header\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert _talk(site, b"GET /" + b"a" * 70_000).startswith(b"HTTP/1.1 431")
    body = (
        b"POST /debug/gc/trigger HTTP/1.1\r\nHost: p\r\nContent-Length: 9000000\r\n\r\n"
        + b"x" * 1_100_000
    )
    with contextlib.suppress(ConnectionResetError):  # closed while we were still sending
        assert _talk(site, body).startswith(b"HTTP/1.1 413")
    Client(site.pumps[0].address).transaction(site.pd, b"")


@pytest.mark.slow
def test_pausing_by_http_ends_the_pump_as_paused(site):
    pump = site.pump("paused")
    answer = httpx.put(f"http://{pump.address}/state/{pump.node_id}/pause", timeout=60)
    assert answer.json() == {"message": "apply action pause success!", "code": 200, "data": None}
    assert pump.process.wait(60) == 0
    assert site.entry(pump).state == "paused"
