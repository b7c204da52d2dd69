"""The pump as a member of the cluster: registration, heartbeat, states, leaving, and what it does
by itself.
"""

import contextlib
import json
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import httpx
import pytest

from sluice.pump_service.cluster import (
    Heartbeat,
    NodeError,
    check_cluster,
    check_share,
    node_id,
)
from sluice.tidb import pb
from sluice.tidb.etcd import EtcdError, NodeStatus
from sluice.tidb.table_shares import Share
from tests.ports import free_port
from tests.pump_service.pumpkit import CLUSTER, PD, Client, PumpProcess, Site, binlog


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    shared = Site(tmp_path_factory.mktemp("site"))
    yield shared
    shared.close()


@pytest.fixture
def site(shared, tmp_path):
    shared.reset(tmp_path)
    yield shared
    shared.reset(tmp_path)


def _until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it didn't come to pass"
        time.sleep(0.05)


class _Drainer:
    """A Drainer as far as pumps know it: an entry in the registry and Notify."""

    def __init__(self, site, node="drainer-1", state="online", serve=True):
        self.site, self.node, self.state = site, node, state
        self.told = threading.Event()
        self.port = free_port()
        self.server = None
        if serve:
            handler = grpc.unary_unary_rpc_method_handler(
                self._notify, pb.pump.NotifyReq.FromString, pb.pump.NotifyResp.SerializeToString
            )
            self.server = grpc.server(ThreadPoolExecutor(2))
            generic = grpc.method_handlers_generic_handler("binlog.Cistern", {"Notify": handler})
            self.server.add_generic_rpc_handlers((generic,))
            self.server.add_insecure_port(f"127.0.0.1:{self.port}")
            self.server.start()
        self.at(0)

    def _notify(self, _request, _context):
        self.told.set()
        return pb.pump.NotifyResp()

    def at(self, ts, state=None):
        self.state = state or self.state
        status = NodeStatus(self.node, f"127.0.0.1:{self.port}", state=self.state, max_commit_ts=ts)
        self.site.registry.update_drainer(status)

    def stop(self):
        if self.server is not None:
            self.server.stop(0).wait()


def test_a_pump_registers_with_the_originals_json_and_keeps_its_entry_fresh(site):
    pump = site.pump("one")
    _, commit = Client(pump.address).transaction(site.pd, b"")
    _until(lambda: site.entry(pump).max_commit_ts >= commit)
    value = json.loads(site._etcd_client.get(f"/tidb-binlog/v1/pumps/{pump.node_id}").value)
    assert set(value) == {
        "nodeId",
        "host",
        "state",
        "isAlive",
        "score",
        "label",
        "maxCommitTS",
        "updateTS",
    }
    assert (value["nodeId"], value["host"], value["state"]) == (
        pump.node_id,
        pump.address,
        "online",
    )
    assert abs(value["updateTS"] - site.pd.ts()) >> 18 < 60_000
    before = site.entry(pump).update_ts
    _until(lambda: site.entry(pump).update_ts > before)


@pytest.mark.slow
def test_sigterm_pauses_the_pump_in_time_and_open_calls_are_answered(site):
    pump = site.pump("one")
    client = Client(pump.address)
    reader = Client(pump.address).pull(0)
    threading.Thread(
        target=lambda: [None for _ in iter(lambda: next(reader, None), None)], daemon=True
    )
    client.write(b"")
    assert pump.terminate(30) == 0  # Kubernetes kills what takes longer
    assert site.entry(pump).state == "paused"
    pump.start()
    assert site.entry(pump).state == "online"


def test_an_idle_pump_writes_fake_binlogs_so_that_readers_go_on(site):
    pump = site.pump("one", "-fake-binlog-interval", "1")
    stream = Client(pump.address).pull(0)
    entity = next(stream).entity
    stream.cancel()
    found = pb.binlog.Binlog.FromString(entity.payload)
    assert (found.tp, found.start_ts) == (pb.binlog.Rollback, found.commit_ts)
    assert (
        entity.payload
        == b"\x08\x02\x10" + entity.payload[3:12] + b"\x18" + entity.payload[3:12] + b"\x38\0\x40\0"
    )
    assert abs(found.commit_ts - site.pd.ts()) >> 18 < 60_000


@pytest.mark.slow
def test_a_new_pump_tells_online_drainers_and_not_the_others(site):
    online, paused = _Drainer(site), _Drainer(site, "drainer-2", "paused", serve=False)
    pump = site.pump("one")
    assert online.told.is_set()
    online.told.clear()
    pump.terminate()
    pump.start()  # it was paused: the drainers know it
    assert not online.told.is_set()
    for drainer in (online, paused):
        drainer.stop()


@pytest.mark.slow
def test_a_pump_that_cannot_tell_a_drainer_doesn_t_start(site):
    _Drainer(site, serve=False)
    pump = site.pump("one", start=False)
    pump.launch()
    assert pump.process.wait(60) == 2
    assert "pump: fail to notify all living drainer: drainer drainer-1 at 127.0.0.1" in pump.text()
    assert site.entry(pump).state == "offline"


@pytest.mark.slow
def test_close_waits_for_every_drainer_and_then_leaves_for_good(site):
    drainer = _Drainer(site)
    gone = _Drainer(site, "drainer-2", "offline", serve=False)
    pump = site.pump("one")
    client = Client(pump.address)
    _, commit = client.transaction(site.pd, b"last")
    answer = httpx.put(f"http://{pump.address}/state/{pump.node_id}/close", timeout=60).json()
    assert answer == {"message": "apply action close success!", "code": 200, "data": None}
    _until(lambda: site.entry(pump).state == "closing")
    drainer.at(commit)
    time.sleep(2.5)
    assert pump.process.poll() is None, (
        "it left although a fake binlog of its own had not been read"
    )
    assert [one.commit_ts for one in client.pull_commits(0, 1)] == [commit]
    drainer.at(site.pd.ts())
    assert pump.process.wait(60) == 0
    assert site.entry(pump).state == "offline"
    drainer.told.clear()
    pump.start()  # an offline pump comes back as a new one
    assert drainer.told.is_set()
    gone.stop()
    drainer.stop()


@pytest.mark.slow
def test_a_signal_while_closing_ends_the_wait(site):
    drainer = _Drainer(site)
    pump = site.pump("one")
    httpx.put(f"http://{pump.address}/state/{pump.node_id}/close", timeout=60)
    _until(lambda: site.entry(pump).state == "closing")
    time.sleep(1)
    assert pump.terminate() == 0
    assert site.entry(pump).state == "closing"
    drainer.stop()


def _is_refused(client):
    """Whether a probe, of which nothing is written, is."""
    try:
        client.write(b"")
    except grpc.RpcError:
        return True
    return False


def test_prewrites_are_refused_while_closing_but_commits_are_taken(site):
    drainer = _Drainer(site)
    pump = site.pump("one")
    client = Client(pump.address)
    start = site.pd.ts()
    client.write(binlog(0, start, value=b"open"))
    httpx.put(f"http://{pump.address}/state/{pump.node_id}/close", timeout=60)
    _until(lambda: _is_refused(client))  # first the registry tells TiDB
    for refused in (binlog(0, site.pd.ts()), b""):
        with pytest.raises(grpc.RpcError) as caught:
            client.write(refused)
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.UNKNOWN,
            "no online: closing",
        )
    commit = site.pd.ts()
    client.write(binlog(1, start, commit))
    found = client.pull_commits(0, 1)[0]
    assert (found.commit_ts, found.prewrite_value) == (commit, b"open")
    client.write(binlog(2, site.pd.ts()))
    answer = httpx.put(f"http://{pump.address}/state/{pump.node_id}/pause", timeout=60).json()
    assert answer["message"] == "this pump's state is closing, apply pause failed!"
    drainer.stop()


@pytest.mark.slow
def test_the_pump_registers_again_when_etcd_comes_back_empty(site):
    pump = site.pump("one", "-heartbeat-interval", "0.5")
    site.etcd.stop()
    client = Client(pump.address)
    client.transaction(site.pd, b"etcd is away")
    assert httpx.get(f"http://{pump.address}/status", timeout=60).json()["ErrMsg"]
    _until(lambda: "heartbeat failed" in pump.text())
    site.etcd.start(fresh=True)
    _until(lambda: site.registry.get_pump(pump.node_id) is not None)
    assert site.entry(pump).state == "online"


@pytest.mark.slow
def test_the_pump_serves_while_pd_is_away(site):
    pump = site.pump("one", "-fake-binlog-interval", "0.5", "-heartbeat-interval", "0.5")
    ts = site.pd.ts
    site.pd.stop()
    client = Client(pump.address)
    start, commit = ts(), ts()
    client.write(binlog(0, start, value=b"pd is away"))
    client.write(binlog(1, start, commit))
    assert client.pull_commits(commit - 1, 1)[0].prewrite_value == b"pd is away"
    status = httpx.get(f"http://{pump.address}/status", timeout=60).json()
    assert (status["CommitTS"], bool(status["ErrMsg"])) == (0, True)
    site.pd.start()
    before = site.entry(pump).update_ts
    _until(lambda: site.entry(pump).update_ts > before)
    stream = client.pull(commit)
    assert next(stream).entity.meta.commitTs > commit  # a fake binlog: PD is back
    stream.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True])
def test_the_pump_leaves_in_time_while_etcd_and_pd_are_away(site, silent):
    pump = site.pump("one")
    Client(pump.address).write(binlog(0, site.pd.ts(), value=b"unfinished: TiKV is to be asked"))
    site.etcd.stop()
    site.pd.stop()
    with socket.create_server(("127.0.0.1", site.pd.port)) if silent else contextlib.nullcontext():
        assert pump.terminate(30) == 0  # Kubernetes kills what takes longer
    assert "the registry doesn't know that this pump is paused: etcd at" in pump.text()
    assert f"pump {pump.node_id} has left, paused" in pump.text()


class _Registry:
    """Takes a pump's entries as etcd would that is away, or slow."""

    def __init__(self, away=False):
        self.away, self.tried, self.go_on = away, [], threading.Event()

    def update_pump(self, status):
        self.tried.append(status.state)
        if self.away:
            raise EtcdError("away")
        self.go_on.wait(60)


def _beat(registry, state, patience_s):
    beat = Heartbeat(registry, 3600, patience_s)
    beat.start(lambda: NodeStatus("one", "localhost:1", state=state[0]))
    beat.changed()
    _until(lambda: registry.tried == ["online"] or (registry.away and registry.tried))
    state[0] = "paused"
    beat.end()
    return beat


def test_a_heartbeat_that_finds_no_registry_becomes_the_last_word():
    registry, state = _Registry(away=True), ["online"]
    beat = _beat(registry, state, 60)
    _until(lambda: "paused" in registry.tried)
    registry.away = False
    registry.go_on.set()
    beat.join()
    assert registry.tried == sorted(registry.tried)  # online …, paused …
    assert registry.tried[-1] == "paused"


def test_the_last_word_comes_after_a_heartbeat_that_is_under_way():
    registry, state = _Registry(), ["online"]
    beat = _beat(registry, state, 60)
    registry.go_on.set()
    beat.join()
    assert registry.tried == ["online", "paused"]


def test_a_pump_that_leaves_doesn_t_wait_for_a_registry_that_hangs(caplog):
    registry, state = _Registry(), ["online"]
    _beat(registry, state, 0.2).join()
    assert not registry.go_on.is_set()
    assert "the registry doesn't know that this pump is paused: no answer yet" in caplog.text
    registry.go_on.set()


@pytest.mark.slow
def test_a_second_pump_under_a_running_pump_s_id_is_refused(site):
    pump = site.pump("one", "-heartbeat-interval", "0.5")
    second = site.pump("two", "-heartbeat-interval", "20", start=False, node_id=pump.node_id)
    second.launch()
    assert second.process.wait(60) == 2
    assert f"a pump with node id {pump.node_id} is running at {pump.address}" in second.text()
    assert site.entry(pump).host == pump.address


@pytest.mark.slow
def test_a_second_pump_is_refused_also_while_the_first_one_is_closing(site):
    drainer = _Drainer(site)
    pump = site.pump("one", "-heartbeat-interval", "0.5")
    httpx.put(f"http://{pump.address}/state/{pump.node_id}/close", timeout=60)
    _until(lambda: site.entry(pump).state == "closing")
    second = site.pump("two", "-heartbeat-interval", "20", start=False, node_id=pump.node_id)
    second.launch()
    assert second.process.wait(60) == 2
    assert f"a pump with node id {pump.node_id} is running at {pump.address}" in second.text()
    drainer.stop()


@pytest.mark.slow
def test_a_pump_goes_offline_only_when_paused_drainers_are_past_it_too(site):
    waiting = _Drainer(site, "pipeline", "paused", serve=False)
    pump = site.pump("one")
    Client(pump.address).transaction(site.pd, b"last")
    httpx.put(f"http://{pump.address}/state/{pump.node_id}/close", timeout=60)
    _until(lambda: "waiting for pipeline (paused, at 0)" in pump.text())
    assert site.entry(pump).state == "closing"
    waiting.at(site.pd.ts())
    assert pump.process.wait(60) == 0
    assert site.entry(pump).state == "offline"


@pytest.mark.slow
def test_without_drainers_a_pump_goes_offline_at_once(site):
    pump = site.pump("one")
    httpx.put(f"http://{pump.address}/state/{pump.node_id}/close", timeout=60)
    assert pump.process.wait(60) == 0
    assert site.entry(pump).state == "offline"


@pytest.mark.slow
def test_a_pump_that_closes_waits_for_the_commit_of_an_open_prewrite(site):
    pump = site.pump("one")
    client = Client(pump.address)
    start = site.pd.ts()
    client.write(binlog(0, start, value=b"open"))
    httpx.put(f"http://{pump.address}/state/{pump.node_id}/close", timeout=60)
    time.sleep(1.5)
    assert pump.process.poll() is None, "it left with a Prewrite without verdict"
    client.write(binlog(2, start))
    assert pump.process.wait(60) == 0
    assert site.entry(pump).state == "offline"


@pytest.mark.slow
def test_the_log_begins_with_the_version_and_the_settings_and_warns_of_those_without_effect(site):
    pump = site.pump("one", "-log-rotate", "day")
    lines = pump.text().splitlines()
    assert "sluice pump " in lines[0]
    assert "data_dir=" in lines[0]
    assert "WARNING" in lines[1]
    assert "flag -log-rotate has no effect: " in lines[1]


@pytest.mark.slow
def test_a_killed_pump_may_come_back_at_another_address(site):
    pump = site.pump("one", "-heartbeat-interval", "0.3")
    pump.kill()
    moved = PumpProcess(site.pd, pump.data_dir, "-heartbeat-interval", "0.3", node_id=pump.node_id)
    site.pumps.append(moved)
    moved.start()
    assert site.entry(moved).host == moved.address


@pytest.mark.slow
def test_a_pump_whose_data_is_gone_does_not_answer_for_it(site, tmp_path):
    pump = site.pump("one", "-heartbeat-interval", "0.2")
    Client(pump.address).transaction(site.pd, b"rows")
    _until(lambda: site.entry(pump).max_commit_ts)
    pump.kill()
    for _ in range(2):
        empty = PumpProcess(
            site.pd, tmp_path / "not-mounted", "-heartbeat-interval", "0.2", node_id=pump.node_id
        )
        empty.launch()
        assert empty.process.wait(60) == 2
        assert "is a disk not mounted" in empty.text()
    site.registry.update_pump(replace(site.entry(pump), state="offline"))
    again = PumpProcess(
        site.pd, tmp_path / "not-mounted", "-heartbeat-interval", "0.2", node_id=pump.node_id
    )
    site.pumps.append(again)
    again.start()
    assert site.entry(again).state == "online"


@pytest.mark.slow
@pytest.mark.parametrize("gone", [pytest.param("value", marks=pytest.mark.slow), "kv and value"])
def test_a_value_log_that_was_emptied_beside_its_node_id_is_not_served_as_empty_windows(site, gone):
    pump = site.pump("one", "-heartbeat-interval", "0.2")
    Client(pump.address).transaction(site.pd, b"rows")
    _until(lambda: site.entry(pump).max_commit_ts)
    pump.kill()
    for name in gone.split(" and "):
        shutil.rmtree(pump.data_dir / name)
    for _ in range(2):
        pump.launch()
        assert pump.process.wait(60) == 2
        assert "is a disk not mounted" in pump.text()
    site.registry.update_pump(replace(site.entry(pump), state="offline"))
    pump.start()
    assert site.entry(pump).state == "online"


@pytest.mark.slow
def test_a_pump_that_is_killed_before_it_took_anything_starts_again(site):
    pump = site.pump("one", "-heartbeat-interval", "0.2")
    _until(lambda: site.entry(pump).max_commit_ts)
    pump.kill()
    # the id is in its settings; the binlogs say that the data is its own
    (pump.data_dir / ".node").unlink()
    pump.start()
    assert site.entry(pump).state == "online"


def test_the_node_id_is_kept_and_wins_over_the_settings(tmp_path):
    assert node_id(tmp_path, "", "10.0.0.1:8250") == f"{socket.gethostname()}:8250"
    assert node_id(tmp_path, "another", "10.0.0.1:9999") == f"{socket.gethostname()}:8250"
    assert (tmp_path / ".node").stat().st_mode & 0o777 == 0o600


def test_a_data_directory_of_another_cluster_is_refused(tmp_path):
    check_cluster(tmp_path, CLUSTER)
    check_cluster(tmp_path, CLUSTER)
    with pytest.raises(NodeError, match=f"cluster {CLUSTER}, but PD belongs to cluster 5"):
        check_cluster(tmp_path, 5)


def test_a_data_directory_of_another_share_is_refused_and_an_empty_one_takes_any(tmp_path):
    check_share(tmp_path, Share(), is_empty=False)
    with pytest.raises(NodeError, match=r"share 1/1 of the tables, but .* share is '2/3'"):
        check_share(tmp_path, Share(2, 3), is_empty=False)
    check_share(tmp_path, Share(2, 3), is_empty=True)
    check_share(tmp_path, Share(2, 3), is_empty=False)
    for other in (Share(), Share(1, 3), Share(2, 4)):
        with pytest.raises(NodeError, match="set it to '2/3'"):
            check_share(tmp_path, other, is_empty=False)
    check_share(tmp_path, Share(), is_empty=True)
    check_share(tmp_path, Share(), is_empty=False)


@pytest.mark.slow
def test_a_start_that_can_t_succeed_ends_with_code_2_and_one_line(site, tmp_path):
    pump = site.pump("one")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases = {
            "another pump is running on": PumpProcess(site.pd, pump.data_dir),
            "can't listen on": PumpProcess(site.pd, tmp_path / "b", port=taken.getsockname()[1]),
            "cluster": PumpProcess(foreign := PD(site.etcd.port, 99), _written_for(tmp_path / "c")),
            "unknown key stoarge": PumpProcess(
                site.pd, tmp_path / "d", "-config", _file(tmp_path, "[stoarge]")
            ),
            "expected host:port": PumpProcess(site.pd, tmp_path / "e", "-addr", "nonsense"),
        }
        for text, second in cases.items():
            site.pumps.append(second)
            second.launch()
        for text, second in cases.items():
            assert second.process.wait(60) == 2, second.text()
            lines = [line for line in second.text().splitlines() if line.startswith("pump: ")]
            assert len(lines) == 1, second.text()
            assert text in lines[0]
    foreign.stop()
    Client(pump.address).transaction(site.pd, b"the first goes on")


def _written_for(folder):
    folder.mkdir()
    check_cluster(folder, CLUSTER)
    return folder


def _file(folder, text):
    path = folder / "pump.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_a_pump_without_pd_gives_up_after_a_few_tries_and_says_so(site):
    site.pd.stop()
    pump = site.pump("one", start=False)
    pump.launch()
    assert pump.process.wait(60) == 2
    assert "can't reach PD (setting pd-urls): " in pump.text()
    assert site.pd.url.removeprefix("http://") in pump.text()
