"""What operators see of a capture: `sluice status` beside a real pump, and the check beforehand."""

import json
import time

import pytest

from sluice.cli.status import _exit_code
from sluice.devstack.stack import Stack
from sluice.devstack.tidb.mvcc_records import Change
from sluice.errors import OK
from sluice.etl import load_settings
from sluice.etl.operate.overview import overview
from sluice.pump_service.capture.check import check_capture
from sluice.tidb import EtcdClient, NodeStatus, PDClient, Registry, tso
from tests import recorded_changes
from tests.cli.typed import typed
from tests.etl.relay_from_recording import RECORDINGS
from tests.pump_service.capture.captured_stage import TIMEOUT_S, Stage
from tests.pump_service.capture.looped_world import LoopedWorld
from tests.pump_service.pumpkit import Etcd


@pytest.fixture
def etcd(tmp_path):
    made = Etcd(tmp_path / "etcd")
    yield made
    made.stop()


@pytest.mark.slow
def test_status_shows_a_capture_and_the_transaction_that_holds_it_back(tmp_path, etcd):
    history = recorded_changes.transactions("08-scan-from-start")
    begin = history[-1].commit_ts
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:{etcd.port}"\n'
        f'[relay]\nurl = "file://{tmp_path}/relay"\n'
        '[downstream]\nhost = "127.0.0.1"\nport = 1\n'
    )
    stage = Stage(tmp_path, etcd)
    pump = stage.pump("captured", begin)
    try:
        for each in history:
            stage.apply(each, in_two_phases=False)
        pump.start()
        now_ts = stage.looped.do(stage.looped.world.tso)
        stage.advance(now_ts)
        pump.wait_through(now_ts)
        start_ts = stage.looped.do(stage.looped.world.tso)
        key = next(iter(history[-1].changes)).key
        stage.looped.do(
            stage.looped.world.store.prewrite_all, {key: Change(b"\x80\x00\x00\x00\x00\x00")},
            start_ts, key,
        )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            stage.advance(stage.looped.do(stage.looped.world.tso))
            found = json.loads(typed("status", "--json", "--config", config).stdout)
            capture = found["pumps"][0]["capture"]
            if capture["held_back_by"]:
                break
            assert time.monotonic() < deadline, capture
            time.sleep(0.5)
        assert capture["frontier_ts"] <= start_ts and capture["regions"]["live"] >= 4
        shown = typed("status", "--config", config).stdout
        assert "captures from TiKV, " in shown and " live" in shown, shown
        assert f"held back by a lock of transaction {start_ts} " in shown
        assert f"on key {key.hex()} in region " in shown
        listed = typed("pumps", "list", "--config", config).stdout
        assert "captures cluster " in listed
        assert f"held back by a lock of transaction {start_ts} " in listed, listed
        seen = overview(load_settings(config))
        (pump,) = seen.pumps
        assert pump.is_captured and pump.capture[-1].startswith(
            "held back by a lock of transaction"
        )
    finally:
        stage.close()


@pytest.mark.parametrize(
    ("captures", "code"),
    [
        ([{"failure": "", "replicas": {"a": ""}}, {"failure": ""}], 0),
        ([{"failure": "gone"}], 4),
        ([{"failure": "gone"}, None], 4),
        ([{"failure": "gone"}, {"failure": ""}], 3),
        ([{"failure": "gone"}, {"failure": "gone"}], 4),
        ([{"failure": "", "replicas": {"a": "pump a differs at commit ts 5"}}, None], 4),
    ],
)
def test_one_of_several_captures_is_enough_and_a_difference_needs_an_operator(captures, code):
    pumps = [
        {"state": "online", "captured_cluster_id": 7, "captured_share": "", "capture": capture}
        for capture in captures
    ]
    assert _exit_code({"pumps": pumps}) == code


def test_a_share_without_a_capture_that_runs_needs_an_operator():
    def pump(share, failure, state="online"):
        capture = {"failure": failure} if state == "online" else None
        return {
            "state": state, "captured_cluster_id": 7, "captured_share": share, "capture": capture
        }  # fmt: skip

    running = [pump("1/2", ""), pump("2/2", "")]
    assert _exit_code({"pumps": [*running, pump("2/2", "gone")]}) == 3
    assert _exit_code({"pumps": [running[0], pump("2/2", "gone")]}) == 4
    assert _exit_code({"pumps": [*running, pump("2/2", "", "paused")]}) == 0
    assert _exit_code({"pumps": [running[0], pump("2/2", "", "paused")]}) == 3


@pytest.mark.parametrize(("states", "code"), [(["paused"], 3), (["paused", "online"], 0)])
def test_a_paused_pump_is_waited_for_unless_a_replica_of_it_runs(states, code):
    pumps = [
        {"state": state, "captured_cluster_id": 7, "captured_share": "", "capture": None}
        for state in states
    ]
    assert _exit_code({"pumps": pumps}) == code


@pytest.fixture
def world():
    made = LoopedWorld([b"t" + bytes([128]) + bytes(6) + b"<"])
    yield made
    made.close()


def checked(world, etcd, position_ts):
    """Return the check's results: those that are well, and the others by area."""
    with (
        PDClient(world.world.pd_url) as pd,
        EtcdClient(f"http://127.0.0.1:{etcd.port}") as registry,
    ):
        results = list(check_capture(pd, registry, None, position_ts))
    return (
        [each.text for each in results if each.state == OK],
        {each.area: each for each in results if each.state != OK},
    )


def test_a_capture_can_begin_where_versions_history_and_regions_allow_it(world, etcd):
    world.world.pd.version = "7.5.1"
    with EtcdClient(f"http://127.0.0.1:{etcd.port}") as registry:
        info = json.dumps({"version": "8.0.11-TiDB-v7.5.1"}).encode()
        registry.put("/topology/tidb/10.0.0.1:4000/info", info)
        registry.put("/topology/tidb/10.0.0.1:4000/ttl", b"1")
        old = b'{"version": "8.0.11-TiDB-v5.4.0"}'  # of a server that is gone, whose entry stays
        registry.put("/topology/tidb/10.0.0.9:4000/info", old)
    position_ts = world.do(world.world.tso)
    well, failed = checked(world, etcd, position_ts)
    assert failed == {}
    assert "TiDB 10.0.0.1:4000: version 8.0.11-TiDB-v7.5.1" in well
    for address in world.world.addresses.values():
        assert f"TiKV {address}: version 7.5.1" in well
        assert f"TiKV {address}: streams changes without TLS" in well
    assert "2 to subscribe, all with a leader" in well
    # The check leaves nothing behind that would hold TiKV's garbage collection.
    later = world.do(world.world.tso)
    assert world.do(world.world.pd.collect_garbage, later) == later


def test_a_capture_is_refused_beforehand_with_a_reason_for_each_obstacle(world, etcd):
    position_ts = world.do(world.world.tso)
    dropped = world.do(world.world.tso)
    world.do(world.world.pd.collect_garbage, dropped)
    world.world.pd.version = "7.1.9"
    with EtcdClient(f"http://127.0.0.1:{etcd.port}") as registry:
        registry.put(
            "/topology/tidb/10.0.0.1:4000/info", b'{"version": "8.0.11-TiDB-v6.5.3"}'
        )  # 8.0.11 is MySQL's
        registry.put("/topology/tidb/10.0.0.1:4000/ttl", b"1")
    _, failed = checked(world, etcd, position_ts)
    assert set(failed) == {"tikv", "tidb", "history"}
    assert str(dropped) in failed["history"].text and str(position_ts) in failed["history"].text
    assert "tidb_gc_life_time" in failed["history"].hint


@pytest.mark.slow
def test_the_command_ends_with_1_and_names_what_is_missing(tmp_path):
    stack = Stack(tmp_path / "home")
    try:
        stack.up(["etcd", "cluster"], recording=RECORDINGS / "shop")
        config = tmp_path / "sluice.toml"
        config.write_text(
            f'[upstream]\npd-urls = "http://127.0.0.1:{stack.site().ports["cluster"]}"\n'
            f'[relay]\nurl = "file://{tmp_path}/relay"\n'
            f'[downstream]\ntype = "file"\n[file]\ndir = "{tmp_path}"\n'
        )
        done = typed("capture", "--check", "--config", config)
        assert done.returncode == 1 and "position  none" in done.stdout
        assert "'6.6.0' is older than 7.5" in done.stdout, "all is checked at the present then"
        position_ts = tso.compose(time.time_ns() // 1_000_000)
        (tmp_path / "savepoint").write_text(f"commitTS = {position_ts}\n")
        done = typed("capture", "--check", "--config", config)
        assert done.returncode == 1 and "'6.6.0' is older than 7.5" in done.stdout, done
        assert "-> upgrade to 7.5" in done.stdout
        assert f"PD keeps versions behind {position_ts}" in done.stdout
        found = json.loads(typed("capture", "--check", "--json", "--config", config).stdout)
        assert found["start_ts"] == position_ts
        url = f"http://127.0.0.1:{stack.site().ports['etcd-client']}"
        with EtcdClient(url) as etcd:  # then landing reads its binlogs up to where a capture begins
            Registry(etcd).register_pump(NodeStatus("pump-1", "127.0.0.1:1"))
            done = typed("capture", "--check", "--config", config)
            assert "TiKV has all versions" in done.stdout
            assert str(position_ts) not in done.stdout, "the past isn't needed"
    finally:
        stack.down()
