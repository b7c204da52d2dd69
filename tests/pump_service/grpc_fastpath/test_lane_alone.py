"""A client who calls one after the other, or seldom, doesn't wait for two threads to wake.

Several share a sync, and a slow disk is waited for by a thread that does nothing else.
"""

import asyncio
import threading

import pytest

from sluice.pump_service.grpc_fastpath import FastPathClient, FastPathLimits, context
from sluice.pump_service.store import writer
from sluice.pump_service.store.value_log import ValueLog
from sluice.tidb import pb
from tests.pump_service.pumpkit import CLUSTER
from tests.pump_service.served_lane import ServedLane
from tests.pump_service.storekit import BASE, commit, eventually, prewrite


def request(number):
    return sent(prewrite(BASE + number))


def sent(record):
    return pb.pump.WriteBinlogReq(clusterID=CLUSTER, payload=record.payload).SerializeToString()


@pytest.fixture
def lane(tmp_path, monkeypatch):
    served = ServedLane(tmp_path / "data", FastPathLimits())
    served.writes = []
    served.disk = threading.Event()
    served.disk.set()
    append = ValueLog.append

    def noted(log, payloads, timestamps):
        served.writes.append((threading.current_thread() is served.thread, len(payloads)))
        assert served.disk.wait(60)
        return append(log, payloads, timestamps)

    monkeypatch.setattr(ValueLog, "append", noted)
    monkeypatch.setattr(writer, "_QUICK_S", 60.0)  # however busy the machine is
    monkeypatch.setattr(writer, "_PROMPT_S", 60.0)
    eventually(lambda: served.store._writer._waiting)
    yield served
    served.disk.set()
    served.close()


@pytest.fixture
def calm(monkeypatch):
    """All that comes is calm traffic."""
    monkeypatch.setattr(context, "_CALM_READ_GAP_S", 0.0)
    monkeypatch.setattr(context, "_CALM_GAP_PER_WRITE_RATIO", 0.0)


def call(client, numbers):
    streams = client.send([request(n) for n in numbers])
    answers = []
    while len(answers) < len(streams):
        answers += client.receive()
    assert sorted(answers) == [(stream, "") for stream in streams]


def test_calls_one_after_the_other_are_written_by_the_thread_that_read_them(lane):
    client = FastPathClient(*lane.client.sock.getpeername())
    for number in range(600):
        call(client, [number])
        eventually(lambda: lane.store._writer._waiting)
    client.close()
    in_the_loop = [here for here, _ in lane.writes]
    assert len(in_the_loop) == 600 and sum(in_the_loop) > 400
    assert not all(in_the_loop[300:]), "it never looked again whether anybody else is waiting"


def test_calls_side_by_side_are_left_to_the_writer(lane):
    client = FastPathClient(*lane.client.sock.getpeername())
    for number in range(0, 400, 8):
        call(client, range(number, number + 8))
    client.close()
    assert sum(count for _, count in lane.writes) == 400
    assert not any(here for here, _ in lane.writes)


def test_calm_traffic_is_written_by_the_thread_that_read_it(lane, calm):
    clients = [FastPathClient(*lane.client.sock.getpeername()) for _ in range(3)]
    for number in range(0, 60, 2):
        call(clients[number % 3], [number, number + 1])
        eventually(lambda: lane.store._writer._waiting)
    for client in clients:
        client.close()
    assert all(here for here, _ in lane.writes) and sum(count for _, count in lane.writes) == 60


def test_many_who_begin_at_a_time_are_left_to_the_writer_also_in_calm_traffic(lane, calm):
    clients = [FastPathClient(*lane.client.sock.getpeername()) for _ in range(4)]
    lane.disk.clear()
    streams = [
        client.send([request(10 * n + i) for i in range(8)]) for n, client in enumerate(clients)
    ]
    eventually(lambda: lane.context.queued and len(lane.writes) == 1)
    assert lane.run(asyncio.sleep(0, "the loop goes on")) == "the loop goes on"
    lane.disk.set()
    for client, asked in zip(clients, streams, strict=True):
        answers = []
        while len(answers) < len(asked):
            answers += client.receive()
        assert sorted(answers) == [(stream, "") for stream in asked]
        client.close()
    assert not any(here for here, _ in lane.writes) and sum(count for _, count in lane.writes) == 32


def test_a_disk_that_was_slow_is_waited_for_by_the_writer_and_everything_else_goes_on(
    lane, calm, monkeypatch
):
    client = FastPathClient(*lane.client.sock.getpeername())
    monkeypatch.setattr(writer, "_QUICK_S", -1.0)
    call(client, [1])
    assert lane.writes == [(True, 1)]
    lane.disk.clear()
    (stream,) = client.send([request(2)])
    eventually(lambda: len(lane.writes) == 2)
    other = FastPathClient(*lane.client.sock.getpeername())
    assert lane.run(asyncio.sleep(0, "the loop goes on")) == "the loop goes on"
    lane.disk.set()
    assert client.receive() == [(stream, "")]
    assert lane.writes[1] == (False, 1)
    other.close()
    client.close()


def answers_of(client, streams):
    found = []
    while len(found) < len(streams):
        found += client.receive()
    return sorted(found)


def test_a_commit_in_calm_traffic_is_answered_with_the_next_prewrite(lane, calm, monkeypatch):
    monkeypatch.setattr(context, "_MAX_ANSWER_DELAY_S", 600.0)
    client = FastPathClient(*lane.client.sock.getpeername())
    call(client, [1])
    eventually(lambda: lane.store._writer._waiting)
    streams = client.send([sent(commit(BASE + 1, BASE + 5))])
    eventually(lambda: lane.store._writer._held)
    streams += client.send([request(10)])
    assert answers_of(client, streams) == [(stream, "") for stream in streams]
    assert lane.writes == [(True, 1), (True, 2)] and lane.context.queued == 0
    client.close()


def test_a_commit_after_which_nothing_comes_is_written_all_the_same(lane, calm):
    client = FastPathClient(*lane.client.sock.getpeername())
    call(client, [1])
    streams = client.send([sent(commit(BASE + 1, BASE + 5))])
    assert answers_of(client, streams) == [(stream, "") for stream in streams]
    assert lane.store.barrier(BASE + 9, 60) == BASE + 9
    client.close()


def test_a_window_has_a_commit_that_waits_for_its_answer(lane, calm, monkeypatch):
    monkeypatch.setattr(context, "_MAX_ANSWER_DELAY_S", 600.0)
    client = FastPathClient(*lane.client.sock.getpeername())
    call(client, [1])
    eventually(lambda: lane.store._writer._waiting)
    streams = client.send([sent(commit(BASE + 1, BASE + 5))])
    eventually(lambda: lane.store._writer._held)
    assert lane.store.barrier(BASE + 9, 60) == BASE + 9
    assert answers_of(client, streams) == [(stream, "") for stream in streams]
    eventually(lambda: lane.context.queued == 0)
    client.close()


def noted_later(lane, monkeypatch):
    later = []
    submit = lane.store.submit

    def noted(*args, **kwargs):
        later.append(kwargs["later"])
        submit(*args, **kwargs)

    monkeypatch.setattr(lane.store, "submit", noted)
    return later


def test_a_client_that_waits_for_its_commits_is_hardly_held_up(lane, calm, monkeypatch):
    monkeypatch.setattr(context, "_TRIAL_INTERVAL_S", 600.0)
    later = noted_later(lane, monkeypatch)
    client = FastPathClient(*lane.client.sock.getpeername())
    for number in range(0, 400, 10):
        call(client, [number])
        eventually(lambda: lane.store._writer._waiting)
        streams = client.send([sent(commit(BASE + number, BASE + number + 5))])
        assert answers_of(client, streams) == [(stream, "") for stream in streams]
    assert later == [False, True] + [False] * 78
    client.close()


def test_of_a_client_that_goes_on_meanwhile_more_commits_are_held_back(lane, calm, monkeypatch):
    monkeypatch.setattr(context, "_TRIAL_INTERVAL_S", 600.0)
    later = noted_later(lane, monkeypatch)
    client = FastPathClient(*lane.client.sock.getpeername())
    call(client, [0])
    streams = []
    for number in range(0, 400, 10):
        eventually(lambda: lane.store._writer._waiting)
        streams += client.send([sent(commit(BASE + number, BASE + number + 5))])
        eventually(lambda number=number: len(later) == number // 5 + 2)
        eventually(lambda: lane.store._writer._waiting)
        streams += client.send([request(number + 10)])
        eventually(lambda number=number: len(later) == number // 5 + 3)
    assert answers_of(client, streams) == [(stream, "") for stream in streams]
    assert sum(later) > 30
    client.close()
