"""A client who calls one after the other doesn't wait for two threads to wake; several share a sync as ever."""

import threading

import pytest

from pump_service.lane import LaneClient, LaneLimits
from pump_service.store import writer
from pump_service.store.value_log import ValueLog
from tests.pump_service.pumpkit import CLUSTER
from tests.pump_service.served_lane import ServedLane
from tests.pump_service.storekit import BASE, eventually, prewrite
from upstream import pb


def request(number):
    record = prewrite(BASE + number)
    return pb.pump.WriteBinlogReq(clusterID=CLUSTER, payload=record.payload).SerializeToString()


@pytest.fixture
def lane(tmp_path, monkeypatch):
    served = ServedLane(tmp_path / "data", LaneLimits())
    served.writes = []
    append = ValueLog.append

    def noted(log, payloads, timestamps):
        served.writes.append((threading.current_thread() is served.thread, len(payloads)))
        return append(log, payloads, timestamps)

    monkeypatch.setattr(ValueLog, "append", noted)
    monkeypatch.setattr(writer, "_QUICK_S", 60.0)  # however busy the machine is
    eventually(lambda: served.store._writer._waiting)
    yield served
    served.close()


def call(client, numbers):
    streams = client.send([request(n) for n in numbers])
    answers = []
    while len(answers) < len(streams):
        answers += client.receive()
    assert sorted(answers) == [(stream, "") for stream in streams]


def test_calls_one_after_the_other_are_written_by_the_thread_that_read_them(lane):
    client = LaneClient(*lane.client.sock.getpeername())
    for number in range(600):
        call(client, [number])
        eventually(lambda: lane.store._writer._waiting)
    client.close()
    in_the_loop = [here for here, _ in lane.writes]
    assert len(in_the_loop) == 600 and sum(in_the_loop) > 400
    assert not all(in_the_loop[300:]), "it never looked again whether anybody else is waiting"


def test_calls_side_by_side_are_left_to_the_writer(lane):
    client = LaneClient(*lane.client.sock.getpeername())
    for number in range(0, 200, 4):
        call(client, range(number, number + 4))
    client.close()
    assert sum(count for _, count in lane.writes) == 200
    assert not any(here for here, _ in lane.writes)
