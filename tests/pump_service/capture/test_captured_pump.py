"""A pump process that captures, killed again and again while a recorded cluster's changes come."""

import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from sluice.devstack.tidb.mvcc_records import Change
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.store import Store, WindowPurgedError
from sluice.pump_service.store.options import StoreOptions
from sluice.tidb.binlog_kinds import PREWRITE
from tests import recorded_changes
from tests.pump_service.capture.dying_sink import definitions_at
from tests.pump_service.capture.looped_world import LoopedWorld
from tests.pump_service.pumpkit import Etcd
from tests.pump_service.storekit import MemoryStore, window

SCRIPT = Path(__file__).with_name("captured_pump.py")
NAME = "08-scan-from-start"
TIMEOUT_S = 60


class Stage:
    """The stand-in's stores with a recorded history, and a pump beside them."""

    def __init__(self, folder, etcd, begin):
        self.data, self.etcd, self.begin = folder / "data", etcd, begin
        self.log = folder / "pump.log"
        self.looped = LoopedWorld([b"t" + bytes([128]) + bytes(6) + b"<", b"t" + bytes([128, 1])])
        self.process = None

    def apply(self, transaction, *, in_two_phases):
        store = self.looped.world.store
        changes = {
            each.key: Change(None if each.is_delete else each.value) for each in transaction.changes
        }
        start_ts, commit_ts = transaction.start_ts, transaction.commit_ts
        if in_two_phases:
            self.looped.do(store.prewrite_all, changes, start_ts, next(iter(changes)))
            for key in changes:
                self.looped.do(store.commit, key, start_ts, commit_ts)
        else:
            self.looped.do(store.put_all, changes, start_ts, commit_ts)

    def advance(self, ts):
        self.looped.do(self.looped.world.changes.advance, ts)

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(SCRIPT),
                    self.looped.world.pd_url,
                    f"http://127.0.0.1:{self.etcd.port}",
                    str(self.data),
                    str(self.begin),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        line = self.process.stdout.readline().split()
        assert line[:1] == ["ready"], self.log.read_text()
        self.address = line[1]

    def frontier(self):
        status = httpx.get(f"http://{self.address}/status", timeout=10).json()
        return status["status"]["captured"]["maxCommitTS"]

    def wait_through(self, ts):
        deadline = time.monotonic() + TIMEOUT_S
        while self.frontier() < ts:
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            self.advance(ts)
            time.sleep(0.02)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.looped.close()


def expected(history, begin, end):
    """Return what the sink writes of the same transactions from a naive reader."""
    store = MemoryStore(begin)
    sink = BinlogWriter(store, definitions_at(history, begin))
    sink.advance(iter([each for each in history if begin < each.commit_ts <= end]), end)
    return sorted((r.commit_ts, r.start_ts, r.payload) for r in store.records if r.tp == PREWRITE)


@pytest.fixture
def etcd(tmp_path):
    made = Etcd(tmp_path / "etcd")
    yield made
    made.stop()


def test_a_captured_pump_that_is_killed_anywhere_has_every_transaction_once(tmp_path, etcd):
    history = recorded_changes.transactions(NAME)
    middle = len(history) // 2
    begin = history[middle].commit_ts
    stage = Stage(tmp_path, etcd, begin)
    try:
        for each in history:
            if each.commit_ts <= begin:
                stage.apply(each, in_two_phases=False)
        rest = [each for each in history if each.commit_ts > begin]
        stage.start()
        for number, each in enumerate(rest):
            stage.apply(each, in_two_phases=bool(number % 3))
            if number % 5 == 0 and (
                number + 1 == len(rest) or rest[number + 1].commit_ts > each.commit_ts
            ):
                stage.advance(each.commit_ts)
            if number % 100 == 99:
                stage.process.kill()
                stage.process.wait()
                stage.start()
            elif number % 60 == 0:
                stage.looped.do(stage.looped.world.changes.break_streams)
        end = rest[-1].commit_ts
        stage.wait_through(end)
        page = httpx.get(f"http://{stage.address}/capture", timeout=10).json()
        assert (page["frontier_ts"], page["failure"]) == (end, "")
        assert page["regions"]["live"] >= 4
        assert "binlog_pump_capture_failed 0.0" in httpx.get(f"http://{stage.address}/metrics").text
        assert stage.process.poll() is None
        stage.process.terminate()
        assert stage.process.wait(TIMEOUT_S) == 0
    finally:
        stage.close()
    options = StoreOptions(stop_write_at_available_space=1, is_captured=True)
    store = Store.open(stage.data, options)
    try:
        found = window(store, begin, end)
        with pytest.raises(WindowPurgedError):
            window(store, begin - 1, end)
    finally:
        store.close()
    assert len(found) > 100
    assert found == expected(history, begin, end)
