"""Put load on a pump: P and C records by unary WriteBinlog, from several processes.

It goes over the fast path's own client side.

A case is callers x payload bytes. Each caller has one call in flight: a Prewrite, then its Commit,
then the next transaction. Reports records/s and the latency of a call (p50, p99) as a client sees
it, and how busy the load processes were: if they were near 100 %, the load generator was the
limit, not the pump.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sluice.pump_service.grpc_fastpath import FastPathClient
from sluice.tidb import tso
from sluice.tidb.codec.varint import encode_uvarint

CASES = ("1x128", "16x128", "64x128", "256x128", "64x1024")


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one case."""

    case: str
    records_per_s: float
    p50_ms: float
    p99_ms: float
    records: int
    seconds: float
    load_cpu: float  # CPU seconds of the load processes per second
    errors: int
    first_error: str


class Clock:
    """Timestamps that ascend over all processes like PD's: 2^18 ticks a millisecond.

    They are from the clock that the processes share. A pump relies on that order, so a counter in
    each process would not do. The last ticks keep the processes apart.
    """

    def __init__(self, number: int, of: int) -> None:
        self._number, self._of = number, of
        self._last = 0

    def next(self) -> int:
        """Return a new timestamp."""
        now = tso.span(time.time_ns()) // 1_000_000
        self._last = max(now - now % self._of + self._number, self._last + self._of)
        return self._last


class Messages:
    """Build WriteBinlogReq messages of a fixed payload size, with the fields that TiDB sends.

    A Prewrite has prewrite_key and prewrite_value, its Commit the key only. To be as large as its
    Prewrite, the Commit takes a long key.
    """

    def __init__(self, cluster_id: int, size: int) -> None:
        self._cluster = b"\x08" + encode_uvarint(cluster_id) + b"\x12"
        # 08 tp, 10 start, 18 commit, 38 00 40 00 take 26 bytes with real timestamps; a Prewrite's
        # commit_ts is 8 shorter.
        key = b"k" * max(size - 26 - 2, 1)
        self._key = b"\x22" + encode_uvarint(len(key)) + key
        self._tail = b"\x38\x00\x40\x00"
        self._value = b"\x2a\x06" + b"x" * 6

    def prewrite(self, start: int) -> bytes:
        """Return the request with the Prewrite binlog of a transaction (`start`: its TSO)."""
        payload = (
            b"\x08\x00\x10"
            + encode_uvarint(start)
            + b"\x18\x00"
            + self._key
            + self._value
            + self._tail
        )
        return self._cluster + encode_uvarint(len(payload)) + payload

    def commit(self, start: int, commit: int) -> bytes:
        """Return the request with its Commit binlog."""
        payload = (
            b"\x08\x01\x10"
            + encode_uvarint(start)
            + b"\x18"
            + encode_uvarint(commit)
            + self._key
            + self._tail
        )
        return self._cluster + encode_uvarint(len(payload)) + payload


@dataclass(frozen=True, slots=True)
class Load:
    """The spread of a case's callers."""

    connections: int = 4
    processes: int = 2


@dataclass(frozen=True, slots=True)
class _Share:
    """The load of one process of `of`.

    It has a number of callers on each connection, with payloads of `size` bytes.
    """

    callers: list[int]
    size: int
    number: int
    of: int


def _work(pipe: Connection, address: str, cluster_id: int, share: _Share) -> None:
    host, port = address.rsplit(":", 1)
    messages = Messages(cluster_id, share.size)
    clients = {}
    for count in share.callers:
        client = FastPathClient(host, int(port))
        clients[client.fileno()] = (client, count)
    pipe.send("ready")
    begin, end = pipe.recv()
    while time.monotonic() < begin:
        time.sleep(0.001)
    clock = Clock(share.number, share.of)
    waits: list[float] = []
    errors: list[str] = []
    # (connection, stream) -> sent at, start_ts or 0 for a Commit
    flight: dict[tuple[int, int], tuple[float, int]] = {}

    def start(key: int, client: FastPathClient, asked: list[tuple[int, bytes]]) -> None:
        at = time.monotonic()
        for stream, (ts, _) in zip(client.send([message for _, message in asked]), asked):
            flight[key, stream] = (at, ts)

    cpu = time.process_time()
    poll = select.poll()
    for key, (client, count) in clients.items():
        poll.register(key, select.POLLIN)
        asked = []
        for _ in range(count):
            now = clock.next()
            asked.append((now, messages.prewrite(now)))
        start(key, client, asked)
    while flight:
        for key, _ in poll.poll(10_000):
            client = clients[key][0]
            answers = client.receive()
            at = time.monotonic()
            asked = []
            for stream, error in answers:
                sent, start_ts = flight.pop((key, stream))
                waits.append(at - sent)
                if error:
                    errors.append(error)
                now = clock.next()
                # every Prewrite gets its Commit, also after the end, so that nothing stays open
                if start_ts:
                    asked.append((0, messages.commit(start_ts, now)))
                elif at < end:
                    asked.append((now, messages.prewrite(now)))
            if asked:
                start(key, client, asked)
    done = time.monotonic()
    pipe.send((np.array(waits), errors, done - begin, time.process_time() - cpu))


def run_case(address: str, cluster_id: int, case: str, seconds: float, load: Load) -> Result:
    """Run one case of callers x bytes; RuntimeError if a load process dies."""
    callers, size = (int(part) for part in case.split("x"))
    connections = min(load.connections, callers)
    processes = min(load.processes, connections)
    per_connection = [
        callers // connections + (i < callers % connections) for i in range(connections)
    ]
    context = multiprocessing.get_context("spawn")
    workers: list[tuple[Any, Connection]] = []
    for number in range(processes):
        ours, theirs = context.Pipe()
        share = _Share(per_connection[number::processes], size, number, processes)
        process = context.Process(
            target=_work, args=(theirs, address, cluster_id, share), daemon=True
        )
        process.start()
        theirs.close()
        workers.append((process, ours))
    try:
        for _, pipe in workers:
            pipe.recv()
        begin = time.monotonic() + 0.1
        for _, pipe in workers:
            pipe.send((begin, begin + seconds))
        parts = [pipe.recv() for _, pipe in workers]
    except EOFError:
        raise RuntimeError(f"case {case}: a load process died, see its trace above") from None
    finally:
        for process, _ in workers:
            process.join(5)
            process.terminate()
    waits = np.concatenate([part[0] for part in parts])
    errors = [error for part in parts for error in part[1]]
    took = max(part[2] for part in parts)
    p50, p99 = np.percentile(waits, [50, 99]) * 1000
    return Result(
        case=case,
        records_per_s=round((len(waits) - len(errors)) / took, 1),
        p50_ms=round(float(p50), 3),
        p99_ms=round(float(p99), 3),
        records=len(waits) - len(errors),
        seconds=round(took, 3),
        load_cpu=round(sum(part[3] for part in parts) / took, 2),
        errors=len(errors),
        first_error=errors[0] if errors else "",
    )
