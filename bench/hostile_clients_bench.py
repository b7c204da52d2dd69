"""Hostile clients side by side with an ordinary writer: what it waits, and what the pump takes.

    python -m sluice.bench.hostile_clients_bench [--seconds 20] [--home DIR] [--only NAME ...]
    python -m sluice.bench.hostile_clients_bench --seconds 6 --crowds

Starts etcd, the stand-in cluster and one pump, gives it a backlog, and measures the writer alone,
then beside every client of `sluice.bench.hostile_clients`. The writer sends at a fixed rate
whatever the pump does (a call that has to wait delays none of the next), and its latencies count
from when a call was due. Reports p50, p99 and the longest wait, the pump's peak of memory and
threads, and the longest that /status took. `--crowds` takes one crowd after the other
(`sluice.bench.hostile_crowds`), each beside a fresh pump.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil

from sluice.bench.hostile_clients import CLIENTS, Client
from sluice.bench.hostile_crowds import CROWDS
from sluice.bench.processes import Peak
from sluice.bench.pump_load import Clock, Messages
from sluice.pump_service.grpc_fastpath import FastPathClient
from sluice.tidb import pb

_RATE = 200  # calls a second
_BACKLOG_MIB = 100
_BACKLOG_BYTES = 15_000  # of a Prewrite
_PAUSE_S = 0.05
_KNOWN = CLIENTS | CROWDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one phase; milliseconds and MiB."""

    calls: int
    failed: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    status_max_ms: float
    rss_peak_mib: int
    threads_peak: int
    pump_cpu: float  # cores


def write_backlog(address: str, cluster_id: int, mebibytes: int) -> None:
    """Transactions for readers to read."""
    host, port = address.rsplit(":", 1)
    client, clock = FastPathClient(host, int(port)), Clock(0, 1)

    def message(tp: int, start: int, commit: int) -> bytes:
        binlog = pb.binlog.Binlog(
            tp=pb.binlog.BinlogType.Name(tp),
            start_ts=start,
            commit_ts=commit,
            prewrite_key=b"k" * 30,
            ddl_job_id=0,
            ddl_schema_state=0,
        )
        if not tp:
            binlog.prewrite_value = bytes(_BACKLOG_BYTES)
        return bytes(
            pb.pump.WriteBinlogReq(
                clusterID=cluster_id, payload=binlog.SerializeToString()
            ).SerializeToString()
        )

    for _ in range((mebibytes << 20) // _BACKLOG_BYTES // 20):
        starts = [clock.next() for _ in range(20)]
        for batch in (
            [message(0, start, 0) for start in starts],
            [message(1, start, clock.next()) for start in starts],
        ):
            left = len(client.send(batch))
            while left:
                answers = client.receive()
                left -= len(answers)
                if any(error for _, error in answers):
                    raise RuntimeError(f"the backlog can't be written: {answers}")
    client.close()


def observe(
    address: str, cluster_id: int, pump: psutil.Process, seconds: float, rate: float = _RATE
) -> Outcome:
    """Write at a rate for so long, ask for /status meanwhile."""
    status: list[float] = []
    over = threading.Event()
    asker = threading.Thread(target=_ask, args=(address, over, status), daemon=True)
    with Peak(lambda: {"rss": pump.memory_info().rss, "threads": pump.num_threads()}) as peak:
        asker.start()
        cpu, began = pump.cpu_times(), time.monotonic()
        waits, failed = _write(address, cluster_id, seconds, rate)
        after, took = pump.cpu_times(), time.monotonic() - began
        over.set()
        asker.join(60)
    p50, p99 = np.percentile(waits, [50, 99]) * 1000
    return Outcome(
        len(waits), failed, round(float(p50), 2), round(float(p99), 2), round(max(waits) * 1000, 1),
        round(max(status, default=float("inf")) * 1000, 1), peak["rss"] >> 20, peak["threads"],
        round((after.user + after.system - cpu.user - cpu.system) / took, 2),
    )  # fmt: skip


def _ask(address: str, over: threading.Event, took: list[float]) -> None:
    # One client for all: making one costs tens of milliseconds of CPU, which the writer of this
    # process would wait for.
    with httpx.Client(timeout=60, headers={"connection": "close"}) as client:
        while not over.wait(0.5):
            began = time.monotonic()
            client.get(f"http://{address}/status").raise_for_status()
            took.append(time.monotonic() - began)


def _write(address: str, cluster_id: int, seconds: float, rate: float) -> tuple[list[float], int]:
    """Return latencies of calls that are due at a rate, in s, and how many failed."""
    host, port = address.rsplit(":", 1)
    client, clock, messages = (
        FastPathClient(host, int(port)),
        Clock(0, 1),
        Messages(cluster_id, 128),
    )
    due: dict[int, float] = {}
    waits: list[float] = []
    failures = 0
    lock = threading.Lock()
    sent = threading.Event()

    def receive() -> None:
        nonlocal failures
        while not (sent.is_set() and not due):
            for stream, error in client.receive():
                now = time.monotonic()
                with lock:
                    waits.append(now - due.pop(stream))
                    failures += bool(error)

    began = time.monotonic()
    receiver = threading.Thread(target=receive, daemon=True)
    for number in range(int(seconds * rate)):
        at = began + number / rate
        if (early := at - time.monotonic()) > 0:
            time.sleep(early)
        if not number % 2:
            start = clock.next()
        message = messages.commit(start, clock.next()) if number % 2 else messages.prewrite(start)
        with lock:
            due[client.send([message])[0]] = at
            if number == int(seconds * rate) - 1:
                sent.set()
        if not number:
            receiver.start()
    receiver.join(60)
    client.close()
    return waits, failures + len(due)


def attack(address: str, cluster_id: int, names: list[str], seconds: float) -> None:
    """Play these clients side by side, a thread each, for `seconds`."""
    os.nice(5)  # what they take of the machine isn't what is measured
    stop = threading.Event()
    threads = [
        threading.Thread(target=_again, args=(_KNOWN[name], address, cluster_id, stop), daemon=True)
        for name in names
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(5)


def _again(client: Client, address: str, cluster_id: int, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(OSError, grpc.RpcError):
            client(address, cluster_id, stop)
        stop.wait(_PAUSE_S)


def beside(  # noqa: PLR0913 the pump, the clients, the time: the last has a default
    address: str,
    cluster_id: int,
    pump: psutil.Process,
    names: Sequence[str],
    seconds: float,
    rate: float = _RATE,
) -> Outcome:
    """Observe as `observe` does, while the hostile clients of these names run.

    They run in processes of their own.
    """
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=attack, args=(address, cluster_id, list(names), seconds + 2), daemon=True
        )
    ]
    for process in processes:
        process.start()
    try:
        time.sleep(2)  # until they are at it
        return observe(address, cluster_id, pump, seconds, rate)
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def crowd_table(
    pump_of: Callable[[], tuple[str, int, psutil.Process]], names: Iterable[str], seconds: float
) -> None:
    """Print what each crowd of these names makes of a fresh pump, and of a writer's waits.

    `pump_of` starts a pump and returns its address, its cluster's id and its process. The writer's
    p99 without a crowd is measured right before.
    """
    for name in names:
        address, cluster_id, pump = pump_of()
        alone = observe(address, cluster_id, pump, seconds)
        crowded = beside(address, cluster_id, pump, [name], seconds)
        ratio = crowded.p99_ms / alone.p99_ms
        print(
            f"{name:<28} MiB {alone.rss_peak_mib} to {crowded.rss_peak_mib}, p99 {alone.p99_ms} to"
            f" {crowded.p99_ms} ms ({ratio:.1f} times), failed {crowded.failed}, cores"
            f" {crowded.pump_cpu}",
            flush=True,
        )


def main() -> int:
    """Run the script."""
    from sluice.devstack import LOOPBACK, Stack
    from sluice.tidb import PDClient

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--only", action="append", choices=sorted(_KNOWN))
    parser.add_argument("--each", action="store_true", help="each client by itself, too")
    parser.add_argument("--crowds", action="store_true", help="crowds instead, each by itself")
    options = parser.parse_args()
    stack = Stack(options.home)
    stack.down()
    stack.wipe("etcd", "cluster", "pump-1")

    def pump_of() -> tuple[str, int, psutil.Process]:
        stack.stop(["pump-1"])
        stack.up(("pump-1",), live=True)
        return address, cluster_id, psutil.Process(stack.state().parts["pump-1"].process.pid)

    try:
        stack.up(("etcd", "cluster", "pump-1"), live=True)
        site = stack.site()
        address = f"{LOOPBACK}:{site.ports['pump-1']}"
        with PDClient(f"http://{LOOPBACK}:{site.ports['cluster']}") as pd:
            cluster_id = pd.cluster_id
        pump = psutil.Process(stack.state().parts["pump-1"].process.pid)
        write_backlog(address, cluster_id, _BACKLOG_MIB)
        if options.crowds:
            crowd_table(pump_of, options.only or CROWDS, options.seconds)
            return 0
        names = options.only or sorted(CLIENTS)
        phases = {"alone": observe(address, cluster_id, pump, options.seconds)}
        for name in names if options.each else ():
            phases[name] = beside(address, cluster_id, pump, [name], options.seconds)
        if options.only is None or not options.each:
            phases["all of them"] = beside(address, cluster_id, pump, names, options.seconds)
        for phase, outcome in phases.items():
            print(f"{phase:<28} {json.dumps(asdict(outcome))}")
        if not pump.is_running() or pump.status() == psutil.STATUS_ZOMBIE:
            raise RuntimeError("the pump is gone, see its log")
    finally:
        stack.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
