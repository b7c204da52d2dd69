"""Two pumps capture one cluster; either is killed at any moment, and a reader misses nothing."""

import random
import signal
import time

import httpx
import pytest

from sluice.etl.landing.extract import read_range
from sluice.etl.landing.planner import CommitsPurgedError
from sluice.tidb import EtcdClient, Registry
from tests import recorded_changes
from tests.pump_service.capture.captured_stage import TIMEOUT_S, Stage, expected
from tests.pump_service.capture.window_taker import CLUSTER_ID, WindowTaker
from tests.pump_service.pumpkit import Etcd

NAME = "08-scan-from-start"
KILLS = 5


@pytest.fixture
def etcd(tmp_path):
    made = Etcd(tmp_path / "etcd")
    yield made
    made.stop()


@pytest.fixture
def registry(etcd):
    with EtcdClient(f"http://127.0.0.1:{etcd.port}", timeout_s=30) as client:
        yield Registry(client)


@pytest.fixture
def stage(tmp_path, etcd):
    made = Stage(tmp_path, etcd)
    yield made
    made.close()


class Reader(WindowTaker):
    """Reads windows into a list of rows."""

    def __init__(self, begin, registry):
        super().__init__(begin, registry)
        self.rows = []

    def take(self, plan):
        found = [
            row
            for each in plan.ranges
            for batch in read_range(each.host, CLUSTER_ID, each.lo, each.hi)
            for row in zip(*(column.to_pylist() for column in batch.columns))
        ]
        assert len({each.host for each in plan.ranges}) <= 1
        self.rows += found


@pytest.fixture
def played(stage, registry):
    """A recorded history of which the first half is in TiKV, and two pumps that begin there."""
    history = recorded_changes.transactions(NAME)
    begin = history[len(history) // 2].commit_ts
    for each in history:
        if each.commit_ts <= begin:
            stage.apply(each, in_two_phases=False)
    pumps = [stage.pump(name, begin) for name in ("one", "two")]
    for pump in pumps:
        pump.start()
    reader = Reader(begin, registry)
    yield history, begin, pumps, reader
    reader.close()


@pytest.mark.slow
def test_of_two_replicas_that_are_killed_at_any_moment_every_transaction_is_read_once(
    stage, registry, played
):
    history, begin, pumps, reader = played
    entries = {pump.node_id: pump.captured_cluster_id for pump in registry.pumps()}
    assert entries == {"one": CLUSTER_ID, "two": CLUSTER_ID}
    rest = [each for each in history if each.commit_ts > begin]
    chance = random.Random(7)
    kills = set(chance.sample(range(len(rest)), KILLS))
    dead = None
    for number, each in enumerate(rest):
        stage.apply(each, in_two_phases=bool(number % 3))
        if number + 1 < len(rest) and rest[number + 1].commit_ts == each.commit_ts:
            continue
        reader.now = each.commit_ts
        stage.advance(each.commit_ts)
        if number % 7 == 0:
            reader.land()
        if number in kills:
            if dead is not None:
                dead.start()
            dead = chance.choice(pumps)
            dead.kill()
    dead.kill()
    end = rest[-1].commit_ts
    reader.wait_through(end, stage)
    assert reader.rows == expected(history, begin, end)
    assert reader.hosts == {pump.address for pump in pumps}
    dead.start()
    for pump in pumps:
        pump.wait_through(end)
    deadline = time.monotonic() + TIMEOUT_S
    while pumps[1].page()["replicas"] != {"one": ""}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    metrics = httpx.get(f"http://{pumps[1].address}/metrics").text
    assert 'binlog_pump_capture_replica_differs{pump="one"} 0.0' in metrics


@pytest.mark.slow
def test_a_replica_that_goes_offline_gives_up_its_claim_and_the_last_one_keeps_it(
    stage, registry, played
):
    history, begin, pumps, reader = played
    rest = [each for each in history if each.commit_ts > begin][:40]
    for each in rest:
        stage.apply(each, in_two_phases=False)
    reader.now = end = rest[-1].commit_ts
    reader.wait_through(end, stage)
    safe_points = stage.looped.world.pd._service_safe_points
    for pump in pumps:
        pump.wait_through(end)
        assert f"sluice-pump-{pump.name}".encode() in safe_points
    for pump, keeps in zip(pumps, (False, True)):
        pump.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + TIMEOUT_S
        while pump.process.poll() is None:
            reader.now += 1 << 18
            stage.advance(reader.now)
            reader.land()
            assert time.monotonic() < deadline, pump.log.read_text()[-4000:]
        assert registry.get_pump(pump.name).state == "offline"
        assert (f"sluice-pump-{pump.name}".encode() in safe_points) == keeps
    later = stage.pump("three", reader.now + 100)
    later.start()
    reader.now += 200
    with pytest.raises(CommitsPurgedError):
        reader.land()


@pytest.mark.slow
def test_a_pump_whose_capture_has_ended_for_good_can_be_taken_offline(stage, registry):
    begin, dropped = (stage.looped.do(stage.looped.world.tso) for _ in range(2))
    stage.looped.do(stage.looped.world.pd.collect_garbage, dropped)
    pump = stage.pump("late", begin)
    pump.start()
    deadline = time.monotonic() + TIMEOUT_S
    while "PD lets TiKV drop versions" not in pump.page()["failure"]:
        assert time.monotonic() < deadline, pump.page()
        time.sleep(0.05)
    pump.process.send_signal(signal.SIGUSR1)
    assert pump.process.wait(TIMEOUT_S) == 0, pump.log.read_text()[-4000:]
    assert registry.get_pump("late").state == "offline"
