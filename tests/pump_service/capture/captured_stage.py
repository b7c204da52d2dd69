"""The stand-in's stores with a recorded history, and pump processes that capture beside them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from sluice.devstack.tidb.mvcc_records import Change
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.tidb.binlog_kinds import PREWRITE
from tests.ports import free_port, free_port_row
from tests.pump_service.capture.dying_sink import definitions_at
from tests.pump_service.capture.looped_world import LoopedWorld
from tests.pump_service.storekit import MemoryStore

SCRIPT = Path(__file__).with_name("captured_pump.py")
SPLITS = [b"t" + bytes([128]) + bytes(6) + b"<", b"t" + bytes([128, 1])]
TIMEOUT_S = 60


class Stage:
    """Two stores, in three regions by default, and the pumps that `pump` has made."""

    def __init__(self, folder, etcd, splits=SPLITS):
        self.folder, self.etcd = folder, etcd
        self.looped = LoopedWorld(splits)
        self.pumps = []

    def pump(self, name, begin, share="1/1"):
        self.pumps.append(CapturedPump(self, name, begin, share))
        return self.pumps[-1]

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

    def break_streams(self):
        self.looped.do(self.looped.world.changes.break_streams)

    def close(self):
        for pump in self.pumps:
            pump.kill()
        self.looped.close()


class CapturedPump:
    """A pump process that begins to capture behind `begin` and comes back at the same address."""

    def __init__(self, stage, name, begin, share):
        self.stage, self.name, self.begin, self.share = stage, name, begin, share
        self.data, self.log = stage.folder / name, stage.folder / f"{name}.log"
        self.address, self.process = f"127.0.0.1:{free_port()}", None

    def start(self):
        world, etcd = self.stage.looped.world, f"http://127.0.0.1:{self.stage.etcd.port}"
        words = [world.pd_url, etcd, self.data, self.begin, self.name, self.address, self.share]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        line = self.process.stdout.readline().split()
        assert line == ["ready", self.address], self.log.read_text()

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def page(self):
        return httpx.get(f"http://{self.address}/capture", timeout=10).json()

    def wait_through(self, ts):
        deadline = time.monotonic() + TIMEOUT_S
        while self.page()["frontier_ts"] < ts:
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            self.stage.advance(ts)
            time.sleep(0.02)


class ShareHolder:
    """A process that holds shares, with the processes of their pumps."""

    def __init__(self, stage, name, shares):
        self.stage, self.data, self.log = stage, stage.folder / name, stage.folder / f"{name}.log"
        self.address, self.shares, self.process = f"127.0.0.1:{free_port_row(shares)}", shares, None
        stage.pumps.append(self)

    def start(self):
        world, etcd = self.stage.looped.world, f"http://127.0.0.1:{self.stage.etcd.port}"
        words = [world.pd_url, etcd, self.data, self.address, self.shares]
        script = SCRIPT.with_name("share_holder_process.py")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, script, *map(str, words)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal_all(self, number):
        """Signal the process and all of its pumps."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self):
        if self.process is not None:
            self.signal_all(signal.SIGKILL)
            self.process.wait()


def expected(history, begin, end):
    """Return what the sink writes of the same transactions from a naive reader."""
    store = MemoryStore(begin)
    sink = BinlogWriter(store, definitions_at(history, begin))
    sink.advance(iter([each for each in history if begin < each.commit_ts <= end]), end)
    return sorted((r.commit_ts, r.start_ts, r.payload) for r in store.records if r.tp == PREWRITE)
