"""Measure a whole capture: another process sends a TiKV store's messages over gRPC.

This process stores them. `python -m sluice.bench.capture_stream ROWS CHANGES FIRST_TS` is the
other one. It prints its port, waits for the subscriptions of two regions, and sends what
`sluice.bench.capture` makes, as fast as they are taken.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, cast

import grpc

from sluice.bench.capture import CaptureResult, made_messages, sysbench_schema
from sluice.pump_service.capture import Capture, CaptureCluster, kernel
from sluice.pump_service.capture.binlog_writer import BinlogWriter
from sluice.pump_service.store import Store, StoreOptions
from sluice.tidb import pb, tso
from sluice.tidb.pd import PDClient, Peer, Region
from sluice.tidb.pd import Store as TiKVStore
from sluice.tidb.tikv import TiKVClient

_MEMORY_BYTES = 512 << 20
_TIMEOUT_S = 600.0
_PEER = Peer(1, 1)
_REGIONS = (
    Region(1, b"", b"t", 1, 1, (_PEER,), _PEER),
    Region(2, b"t", b"", 1, 1, (_PEER,), _PEER),
)


class _OneStore:
    """Answer what a capture asks PD, of a cluster with one store."""

    cluster_id = 7

    def __init__(self, address: str) -> None:
        self._address = address

    def get_store(self, store_id: int) -> TiKVStore:
        return TiKVStore(store_id, self._address, 0, "8.5.0")

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        return [
            region
            for region in _REGIONS
            if region.start_key < end and (not region.end_key or region.end_key > start)
        ]

    def tso(self) -> int:
        return tso.compose(int(time.time() * 1000), 0)


def measure_stream(rows: int, changes: int, report: Callable[[str], None]) -> CaptureResult:
    """Capture `rows` changes, `changes` a transaction, from a process beside this one."""
    count = max(1, rows // changes)
    first_ts = tso.compose(1_700_000_000_000, 0)
    result = CaptureResult(count * changes, count, changes, kernel.IS_COMPILED)
    command = [sys.executable, "-m", __spec__.name, str(count), str(changes), str(first_ts)]
    report(f"making {count:,} transactions of {changes} changes in another process")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
    ):
        assert process.stdout is not None
        try:
            pd = cast(PDClient, _OneStore(f"127.0.0.1:{int(process.stdout.readline())}"))
            options = StoreOptions(is_captured=True, stop_write_at_available_space=0)
            store = Store.open(Path(folder) / "pump", options)
            try:
                _run(store, Path(folder) / "runs", pd, first_ts, process.stdout.readline, result)
            finally:
                store.close()
        finally:
            process.kill()
    return result


def _run(  # noqa: PLR0913 one caller
    store: Store,
    folder: Path,
    pd: PDClient,
    first_ts: int,
    has_begun: Callable[[], str],
    result: CaptureResult,
) -> None:
    sink = BinlogWriter(store, sysbench_schema())
    cluster = CaptureCluster(pd, cast(TiKVClient, None))  # no lock holds this frontier back
    capture = Capture(cluster, lambda: (first_ts - 1, sink), folder, _MEMORY_BYTES)
    capture.start()
    try:
        has_begun()
        spent, began = time.process_time(), time.monotonic()
        last_ts = first_ts + 2 * result.transactions - 1
        while store.max_commit_ts < last_ts:
            if capture.status().failure or time.monotonic() - began > _TIMEOUT_S:
                raise RuntimeError(f"the capture didn't come to its end: {capture.status()}")
            time.sleep(0.005)
        result.seconds = time.monotonic() - began
        result.cpu_us = {"capture": (time.process_time() - spent) / result.rows * 1e6}
        result.message_bytes = capture.status().received_bytes
        result.stored_bytes = store.stats().bytes
    finally:
        capture.stop()
    if sink.rows != result.rows:
        raise RuntimeError(f"{sink.rows} of {result.rows} row changes arrived in the store")


def _serve(count: int, changes: int, first_ts: int) -> None:
    """Serve one capture, until this process is killed."""
    messages = list(made_messages(first_ts, count, changes))

    def feed(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        registered: SimpleQueue[tuple[int, int]] = SimpleQueue()

        def read() -> None:
            for data in requests:
                request = pb.cdc.ChangeDataRequest.FromString(data)
                registered.put((request.region_id, request.request_id))

        Thread(target=read, daemon=True).start()
        subscriptions = dict(registered.get() for _ in _REGIONS)
        initialized = pb.cdc.Event.Row(type=pb.cdc.Event.INITIALIZED)
        for region_id, request_id in subscriptions.items():
            entries = pb.cdc.Event.Entries(entries=[initialized])
            event = pb.cdc.Event(region_id=region_id, request_id=request_id, entries=entries)
            yield pb.cdc.ChangeDataEvent(events=[event]).SerializeToString()
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        for payload, resolved_ts in messages:
            yield payload
            for region_id, request_id in subscriptions.items() if resolved_ts else ():
                resolved = pb.cdc.ResolvedTs(
                    regions=[region_id], ts=resolved_ts, request_id=request_id
                )
                yield pb.cdc.ChangeDataEvent(resolved_ts=resolved).SerializeToString()
        while context.is_active():
            time.sleep(0.1)

    methods: dict[str, Any] = {"EventFeedV2": grpc.stream_stream_rpc_method_handler(feed)}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("cdcpb.ChangeData", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:4]))
