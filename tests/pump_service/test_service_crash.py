"""Kill -9 in the middle of writing: what was acknowledged is there after a restart, once, and a
reader sees no gap.
"""

import os
import signal
import threading
import time

import grpc
import pytest

from sluice.pump_service.grpc_fastpath import FastPathClient
from sluice.tidb import pb
from tests.pump_service.pumpkit import CLUSTER, Client, Site, binlog
from tests.pump_service.storekit import eventually


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.close()


def test_acknowledged_transactions_survive_kill_9_once_each(site):
    pump = site.pump("crash")
    acknowledged: dict[int, int] = {}
    unsure: list[int] = []
    lo = site.pd.ts()

    def write(number: int) -> None:
        client = Client(pump.address)
        try:
            while True:
                start = site.pd.ts()
                client.write(binlog(0, start, value=b"%d" % number))
                commit = site.pd.ts()
                client.write(binlog(1, start, commit))
                acknowledged[commit] = start
        except grpc.RpcError:
            unsure.append(start)
        finally:
            client.close()

    for life in range(1, 4):
        writers = [threading.Thread(target=write, args=(i,)) for i in range(8)]
        for writer in writers:
            writer.start()
        eventually(lambda life=life: len(acknowledged) > life * 60)
        pump.kill()
        for writer in writers:
            writer.join()
        pump.start()
    # A Prewrite whose Commit was lost holds everything behind it back until TiKV tells its fate;
    # here it is rolled back.
    client = Client(pump.address)
    for start in unsure:
        client.write(binlog(2, start))
    last = client.transaction(site.pd, b"last")[1]
    seen = []
    for response in client.pull(lo):
        meta = response.entity.meta
        if meta.startTs != meta.commitTs:
            seen.append((meta.commitTs, meta.startTs))
        if meta.commitTs >= last:
            break
    assert seen == sorted(set(seen)), "a commit came twice or out of order"
    missing = acknowledged.items() - seen
    assert not missing, f"{len(missing)} acknowledged transactions are lost"


def answered(client, *payloads):
    """Sends one after the other, a moment apart as in calm traffic, and waits for all answers."""
    streams = []
    for payload in payloads:
        streams += client.send(
            [pb.pump.WriteBinlogReq(clusterID=CLUSTER, payload=payload).SerializeToString()]
        )
        time.sleep(0.005)
    answers = []
    while len(answers) < len(streams):
        answers += client.receive()
    assert sorted(answers) == [(stream, "") for stream in streams]


@pytest.mark.slow
def test_commits_that_were_answered_with_the_next_prewrite_survive_kill_9_and_a_freeze(site):
    pump = site.pump("calm")
    lo, expected, start = site.pd.ts(), [], 0
    for _ in range(3):
        host, port = pump.address.rsplit(":", 1)
        client = FastPathClient(host, int(port))
        for turn in range(12):
            if start:
                expected.append((site.pd.ts(), start))
                following = site.pd.ts()
                if turn == 6:
                    os.kill(pump.process.pid, signal.SIGSTOP)
                    threading.Timer(0.2, os.kill, (pump.process.pid, signal.SIGCONT)).start()
                answered(
                    client, binlog(1, *reversed(expected[-1])), binlog(0, following, value=b"v")
                )
                start = following
            else:
                start = site.pd.ts()
                answered(client, binlog(0, start, value=b"v"))
        pump.kill()
        client.close()
        pump.start()
    last = Client(pump.address)
    last.write(binlog(2, start))
    end = last.transaction(site.pd, b"last")[1]
    seen = []
    for response in last.pull(lo):
        meta = response.entity.meta
        if meta.startTs != meta.commitTs:
            seen.append((meta.commitTs, meta.startTs))
        if meta.commitTs >= end:
            break
    assert seen[:-1] == expected and len(expected) == 35
