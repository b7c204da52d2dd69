"""Windows that are read on a lane connection by readers that are slow or leave.

A pump in this process, etcd, PD.
"""

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluice.pump_service.calls import pulls, window_service, windows
from sluice.pump_service.calls.window_reads import _WindowRead
from sluice.pump_service.calls.window_service import WindowService
from sluice.pump_service.config import Config
from sluice.pump_service.grpc_fastpath import FastPathLimits
from sluice.pump_service.grpc_fastpath import frames as f
from sluice.pump_service.server import PumpServer
from sluice.pump_service.store import StoreOptions
from sluice.tidb import pb
from sluice.tidb.pumps import PumpReader
from tests.ports import free_port
from tests.pump_service.pumpkit import CLUSTER, Client, Site
from tests.pump_service.rawhttp2 import CALL, RawClient

_READ = tuple((k, b"/sluice.Window/Read" if k == b":path" else v) for k, v in CALL)
_PULL = tuple((k, b"/binlog.Pump/PullBinlogs" if k == b":path" else v) for k, v in CALL)
_BOUNDS = tuple((k, b"/sluice.Window/Bounds" if k == b":path" else v) for k, v in CALL)
_WITHOUT_WINDOW = f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 0})


class _Served:
    """A pump that holds a window of 20 MB."""

    def __init__(self, folder):
        self.site = Site(folder)
        self.address = f"127.0.0.1:{free_port()}"
        self.pump = PumpServer(
            Config(
                addr=self.address,
                advertise_addr=self.address,
                pd_urls=self.site.pd.url,
                data_dir=str(folder / "pump"),
                storage=StoreOptions(stop_write_at_available_space=0),
            )
        )
        self.pump.start()
        client = Client(self.address)
        self.lo = self.site.pd.ts()
        self.commits = [client.transaction(self.site.pd, b"%d" % n * 500_000)[1] for n in range(40)]
        client.close()
        with PumpReader(self.address, CLUSTER, timeout_s=30) as reader:
            reader.bounds(self.lo, self.site.pd.ts(), 10_000)
        self.hi = self.commits[-1]

    def stalled(self):
        """A reader that takes only what it has said at first."""
        client = RawClient(self.address)
        client.call(
            1,
            pb.window.ReadRequest(cluster_id=CLUSTER, lo=self.lo, hi=self.hi).SerializeToString(),
            _READ,
        )
        client.wait_frame(f.DATA)
        return client

    def half_a_mib(self):
        """A request for bounds with a window of 500 KB."""
        asked = pb.window.BoundsRequest(
            cluster_id=CLUSTER, lo=self.lo, max_transactions=1, inline_bytes=1 << 20
        )
        return asked.SerializeToString()

    def read(self):
        """The commits that a reader gets."""
        with PumpReader(self.address, CLUSTER, timeout_s=30) as reader:
            return self.read_by(reader)

    def read_by(self, reader):
        """The same over a connection that is there."""
        return [
            ts for batch in reader.read(self.lo, self.hi) for ts in batch["commit_ts"].to_pylist()
        ]

    def close(self):
        self.pump.leave()
        assert self.pump.wait(60)
        self.site.close()


@pytest.fixture
def served(tmp_path):
    served = _Served(tmp_path)
    yield served
    served.close()


@pytest.fixture
def collects_no_garbage():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_readers_that_take_nothing_make_room_for_others_and_are_told(served, monkeypatch):
    monkeypatch.setattr(window_service, "_STALL_TIMEOUT_S", 0.1)
    stalled = [served.stalled() for _ in range(window_service.MAX_READS)]
    assert served.read() == served.commits
    told = [client for client in stalled if client.answer(1).status == "1"]
    assert told
    for client in stalled:
        client.close()


def test_a_reader_that_the_disk_keeps_waiting_is_not_taken_for_one_that_takes_nothing(
    served, monkeypatch
):
    monkeypatch.setattr(window_service, "_WAIT_STEP_S", 0.01)
    read, waits, goes_on = served.pump._store.read_window, threading.Semaphore(0), threading.Event()
    look, looked = WindowService._cancel_stalled, threading.Semaphore(0)

    def slowly(*window, **how):
        for batch in read(*window, **how):
            yield batch
            waits.release()
            assert goes_on.wait(60)

    def counted(service):
        look(service)
        looked.release()

    monkeypatch.setattr(served.pump._store, "read_window", slowly)
    with (
        PumpReader(served.address, CLUSTER, timeout_s=60) as reader,
        ThreadPoolExecutor(window_service.MAX_READS + 1) as threads,
    ):
        readers = [
            threads.submit(served.read_by, reader) for _ in range(window_service.MAX_READS + 1)
        ]
        for _ in range(window_service.MAX_READS):
            assert waits.acquire(timeout=60)
        with monkeypatch.context() as impatient:
            impatient.setattr(window_service, "_STALL_TIMEOUT_S", 0)
            impatient.setattr(WindowService, "_cancel_stalled", counted)
            for _ in range(3):  # by the reader that has no turn yet
                assert looked.acquire(timeout=60)
        goes_on.set()
        assert [reader.result(60) for reader in readers] == [served.commits] * len(readers)


@pytest.mark.quick_cases("windows")
@pytest.mark.parametrize("request_of", [_READ, _PULL], ids=["windows", "binlogs"])
def test_readers_for_whom_the_system_has_no_thread_take_no_place(served, monkeypatch, request_of):
    monkeypatch.setattr(pulls, "STARTS_PER_S_PER_HOST", 1e9)
    start = threading.Thread.start

    def none_left(thread):
        if thread.name in ("pump-window-read", "pump-pull"):
            raise RuntimeError("can't start new thread")
        start(thread)

    asked = pb.window.ReadRequest(cluster_id=CLUSTER, lo=served.lo, hi=served.commits[0])
    if request_of is _PULL:
        asked = pb.pump.PullBinlogReq(clusterID=CLUSTER, startFrom=pb.pump.Pos(offset=served.lo))
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", none_left)
        client = RawClient(served.address)
        for stream in range(1, 2 * pulls.MAX_READERS_PER_HOST + 1, 2):
            client.call(stream, asked.SerializeToString(), request_of)
            assert client.answer(stream).status == "13"
        client.close()
    client = RawClient(served.address, _WITHOUT_WINDOW)
    client.call(1, asked.SerializeToString(), request_of)
    client.wait_frame(f.HEADERS)
    assert client.answers[1].status is None
    client.close()


@pytest.mark.slow
def test_readers_that_wait_for_their_turn_take_no_thread_each(served):
    clients = [served.stalled() for _ in range(window_service.MAX_READS)]
    request = pb.window.ReadRequest(
        cluster_id=CLUSTER, lo=served.lo, hi=served.hi
    ).SerializeToString()
    for client in clients:
        for stream in range(3, 43, 2):
            client.call(stream, request, _READ)
    assert clients[0].answer(41).status == "14"
    assert sum(thread.name == "pump-window-read" for thread in threading.enumerate()) <= 16
    for client in clients:
        client.close()
    _none_is_read()
    assert served.read() == served.commits


def test_a_reader_that_has_left_leaves_nothing_behind(served):
    for leave in (lambda client: client.send(f.reset(1, f.CANCEL)), lambda client: client.close()):
        clients = [served.stalled() for _ in range(3)]
        for client in clients:
            leave(client)
        _none_is_read()
        for client in clients:
            client.close()
    assert served.read() == served.commits


def _being_sent():
    # By type(): isinstance() asks for a lazy object's __class__, which imports what it stands for.
    return {id(each) for each in gc.get_objects() if type(each) in (_WindowRead, asyncio.Timeout)}


@pytest.mark.slow
def test_nothing_of_what_was_being_sent_waits_for_pythons_collection_of_garbage(
    served, collects_no_garbage
):
    before = _being_sent()
    for leave in (lambda client: client.send(f.reset(1, f.CANCEL)), lambda client: client.close()):
        reader, other = served.stalled(), RawClient(served.address, _WITHOUT_WINDOW)
        other.call(1, served.half_a_mib(), _BOUNDS)
        other.wait_frame(f.HEADERS)
        for client in (reader, other):
            leave(client)
        _eventually(lambda: not _being_sent() - before)
        for client in (reader, other):
            client.close()


def test_a_pump_that_leaves_waits_for_no_reader(served):
    client = served.stalled()
    served.pump.leave()
    assert client.answer(1).status == "14"
    assert served.pump.wait(60)
    client.close()


def test_answers_that_the_client_does_not_take_count_as_calls(served):
    client = RawClient(served.address, _WITHOUT_WINDOW)
    more = 2 * FastPathLimits().calls + 1
    answered = range(1, more, 2)
    for stream in answered:
        client.call(stream, served.half_a_mib(), _BOUNDS)
        while stream not in client.answers:  # its headers, which need no window
            assert client.read(60)
    client.call(more, served.half_a_mib(), _BOUNDS)
    assert client.answer(more).status == "8"
    client.send(f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 1 << 20}), f.window_update(0, 1 << 30))
    assert {client.answer(stream).status for stream in answered} == {"0"}
    assert min(len(client.answers[stream].body) for stream in answered) > 500_000
    client.call(101, served.half_a_mib(), _BOUNDS)
    assert client.answer(101).status == "0"
    client.close()


def test_who_takes_nothing_of_an_answer_is_told_and_served_again(served, monkeypatch):
    monkeypatch.setattr(windows, "_ACCEPT_TIMEOUT_S", 0.1)
    client = RawClient(served.address, _WITHOUT_WINDOW)
    client.call(1, served.half_a_mib(), _BOUNDS)
    assert (client.answer(1).status, client.answers[1].body) == ("1", b"")
    monkeypatch.setattr(windows, "_ACCEPT_TIMEOUT_S", 60)
    client.send(f.settings({f.SETTING_INITIAL_WINDOW_SIZE: 1 << 20}), f.window_update(0, 1 << 20))
    client.call(3, served.half_a_mib(), _BOUNDS)
    assert client.answer(3).status == "0"
    client.close()


def test_a_pump_that_leaves_waits_for_nobody_who_takes_no_answer(served):
    client = RawClient(served.address, _WITHOUT_WINDOW)
    client.call(1, served.half_a_mib(), _BOUNDS)
    client.wait_frame(f.HEADERS)
    served.pump.leave()
    assert client.answer(1).status == "14"
    assert served.pump.wait(60)
    client.close()


def test_a_request_that_is_none_and_one_of_another_cluster_are_refused(served):
    client = RawClient(served.address)
    client.call(1, b"\xff", _READ)
    client.call(3, pb.window.ReadRequest(cluster_id=CLUSTER + 1).SerializeToString(), _READ)
    assert (client.answer(1).status, client.answer(3).status) == ("13", "9")
    client.close()


def _none_is_read():
    _eventually(lambda: all(thread.name != "pump-window-read" for thread in threading.enumerate()))


def _eventually(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.05)
