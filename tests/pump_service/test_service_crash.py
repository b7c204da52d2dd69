"""Kill -9 in the middle of writing: what was acknowledged is there after a restart, once, and a reader sees no gap."""

import threading

import grpc
import pytest

from tests.pump_service.pumpkit import Client, Site, binlog
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
    # A Prewrite whose Commit was lost holds everything behind it back until TiKV tells its fate; here it is rolled
    # back.
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
