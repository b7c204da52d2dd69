"""Play a recording of binlogs as change data, and record again what a capture makes of it."""

from __future__ import annotations

import asyncio
import gzip
import shutil

from sluice.devstack.tidb import Cluster, ClusterOptions
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.capture.schema_tracker import SchemaTracker
from sluice.pump_service.capture.transactions import CapturedTransaction, KeyChange
from sluice.tidb import pb
from sluice.tidb.codec.varint import encode_uvarint
from tests.devstack.tidb.change_world import until
from tests.devstack.tidb.naive_change_client import NaiveClient
from tests.pump_service.storekit import MemoryStore


async def captured(recording, accidents=lambda cluster, round: None):
    """Return the definitions before the replay, and the transactions that a naive client then gets.

    `accidents` is called every few milliseconds with the cluster and a counter.
    """
    cluster = Cluster(
        ClusterOptions(
            "http://127.0.0.1:1",
            recording=recording,
            min_ts_interval_s=0.05,
            has_capture=True,
            stores=2,
        )
    )
    await cluster.start()
    start_ts = await cluster.oracle.take()
    definitions = [
        (key, value)
        for key in cluster.store.scan(b"m", b"n")
        if (value := cluster.store.get(key, start_ts)) is not None
    ]
    addresses = {store_id: cluster.store_address(store_id) for store_id in (1, 2)}
    client = NaiveClient(cluster.cluster_id, cluster.regions.between, addresses, b"", b"", start_ts)
    client.has_exact_old_values = False
    try:
        async with client:
            await cluster.replay({})
            round = 0
            while cluster.work.state == "replaying":
                await asyncio.sleep(0.01)
                client.check()
                accidents(cluster, round)
                round += 1
            assert cluster.work.state == "done", cluster.work.error
            end = cluster.commits.newest_ts
            await until(lambda: client.frontier >= end, client.check, timeout_s=60)
            assert not client.late
            return definitions, client.transactions(), client.errors
    finally:
        await cluster.stop()


def record_again(recording, folder, definitions, transactions):
    """Copy a recording, with the binlogs that the capture's sink makes of `transactions`."""
    shutil.copytree(recording, folder)
    (folder / "binlogs.bin.gz").unlink()
    store = MemoryStore()
    first = sorted(definitions, key=lambda pair: b"DBs" not in pair[0])
    writer = BinlogWriter(store, SchemaTracker(first, 0))
    whole = [
        CapturedTransaction(
            start_ts,
            commit_ts,
            0,
            [
                KeyChange(key, value or b"", old, value is None)
                for key, (value, old) in sorted(rows.items())
                if b"_i" not in key[9:11]
            ],
        )
        for (commit_ts, start_ts), rows in transactions.items()
    ]
    writer.advance(iter(whole), whole[-1].commit_ts + 1)
    with gzip.open(folder / "binlogs.bin.gz", "wb", compresslevel=1) as file:
        for record in store.records:
            if record.tp != pb.binlog.Prewrite:
                continue
            message = pb.binlog.Binlog.FromString(record.payload)
            for tp, commit_ts in ((pb.binlog.Prewrite, 0), (pb.binlog.Commit, record.commit_ts)):
                message.tp, message.commit_ts = tp, commit_ts
                payload = message.SerializeToString()
                file.write(encode_uvarint(len(payload)) + payload)
                message.ClearField("prewrite_value")
