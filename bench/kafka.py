"""Measure how fast a landed backlog is sent to Kafka in one format, and the lag of live traffic.

The broker is the caller's. Two processes work beside it: one encodes batches, as Spark's worker
does, one sends them. The backlog is of the shape `sysbench`, with topics by table and partitions by
key. A consumer with `isolation.level = read_committed` must get each row change once. Landing the
windows is not part of the rate.

For the lag windows of 70 ms are landed, as live traffic is, and encoded in the sending process. The
lag is from a commit timestamp to the consumer.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sluice.bench.apply_shapes import landed
from sluice.bench.shape_parts import History, history
from sluice.bench.shapes import SHAPES
from sluice.etl.apply import BatchReport, prepare_options, run_apply
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.etl.settings import Apply, Downstream, Kafka, Relay, Settings, Upstream
from sluice.relay import PART_SCHEMA, RelayLog, WindowRecord
from sluice.tidb import tso

_SHAPE = "sysbench"
_PARTITIONS = 4
_PATIENCE_S = 600.0
_WINDOW_S = 0.07
_TRANSACTIONS_A_SECOND = 100
_CLUSTER = 7


@dataclass(slots=True)
class KafkaResult:
    """One format. Row changes are the upstream's."""

    format: str
    rows_per_s: float = 0.0
    changes: int = 0
    seconds: float = 0.0
    bytes: int = 0
    """Of keys and values of the messages."""
    cpu_us: dict[str, float] = field(default_factory=dict)
    """CPU time a row change: of the process that sends, of the one that encodes, of the broker."""
    stages_ms: dict[str, float] = field(default_factory=dict)
    differences: int = 0
    """Row changes that the consumer got too few or too often."""
    lag_ms: dict[str, float] = field(default_factory=dict)
    """p50, p95 and the longest at 100 transactions/s."""


def measure(
    options: Kafka, folder: Path, repeated: int, lag_s: float, report: Callable[[str], None]
) -> KafkaResult:
    """Send a backlog, `repeated` times over, then live traffic for `lag_s` seconds.

    `options`: brokers, format and what else the format needs; topics are made and removed. Raises
    what applying raises.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = KafkaResult(options.format)
    report(f"{options.format}: making its traffic")
    shape = SHAPES[_SHAPE]()
    made = history(shape)
    backlog, filled_ts = landed(_times(made, repeated), (folder / "relay").as_uri(), shape.window)
    try:
        _send_backlog(_settings(options, folder, backlog.url), filled_ts, result, report)
        if lag_s:
            report(f"{options.format}: {_TRANSACTIONS_A_SECOND} transactions/s for {lag_s:g} s")
            live = _settings(options, folder, (folder / "live").as_uri())
            _measure_lag(live, made, lag_s, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _times(made: History, repeated: int) -> History:
    """Return the history with the transactions behind the filling so many times."""
    first, rest = made.transactions[: made.first], made.transactions[made.first :]
    return replace(made, transactions=[*first, *rest * repeated])


def _settings(options: Kafka, folder: Path, url: str) -> Settings:
    prefix = f"sluice-bench-{secrets.token_hex(4)}"
    kafka = replace(
        options,
        topic=f"{prefix}.{{schema}}.{{table}}",
        dispatch="key",
        partitions=_PARTITIONS,
        replication_factor=1,
        resume_topic=f"{prefix}-resume",
        savepoint=str(folder / f"{prefix}.savepoint"),
    )
    return Settings(
        Upstream("unused"), Relay(url), Downstream(type="kafka"), apply=Apply(max_rows=50_000),
        kafka=kafka,
    )  # fmt: skip


def _prefix(settings: Settings) -> str:
    return settings.kafka.topic.partition("{")[0]


def _prepared(url: str, windows: BatchPayload, options: PrepareOptions) -> list[pa.RecordBatch]:
    return list(prepare(url, windows, options))


def _send_backlog(
    settings: Settings, filled_ts: int, result: KafkaResult, report: Callable[[str], None]
) -> None:
    relay, options = settings.open_relay(), prepare_options(settings)
    last = relay.last()
    assert last is not None
    reports: list[BatchReport] = []
    with ProcessPoolExecutor(1, get_context("spawn")) as worker:

        def prepared(windows: BatchPayload) -> Iterator[pa.RecordBatch]:
            yield from worker.submit(_prepared, relay.url, windows, options).result()

        def apply_until(ts: int) -> None:
            run_apply(
                settings, until_ts=ts, run_seconds=_PATIENCE_S, prepare=prepared,
                on_batch=reports.append,
            )  # fmt: skip

        report(f"{result.format}: filling the topics")
        apply_until(filled_ts)
        reports.clear()
        processes = _processes(worker, settings.kafka.brokers)
        before, began = _spent(processes), time.perf_counter()
        report(f"{result.format}: sending")
        apply_until(last.hi)
        result.seconds = round(time.perf_counter() - began, 3)
        after = _spent(processes)
    result.changes = sum(each.changes for each in reports)
    result.rows_per_s = result.changes / result.seconds
    result.cpu_us = {
        name: round((after[name] - before[name]) * 1e6 / result.changes, 2) for name in before
    }
    for each in reports:
        for stage, milliseconds in each.stages_ms.items():
            total = result.stages_ms.get(stage, 0.0) + milliseconds
            result.stages_ms[stage] = round(total, 1)
    sent = sum(window.changes for window in relay.windows(0))
    got = Received(settings.kafka.brokers, _prefix(settings))
    got.drain()
    result.bytes = round(got.bytes * result.changes / sent)
    result.differences = abs(sent - got.changes) + got.repeated
    got.remove_topics()


def _processes(worker: ProcessPoolExecutor, brokers: str) -> dict[str, psutil.Process]:
    """Return the processes whose CPU time counts; the broker's only if it is on this machine."""
    (encoding,) = worker._processes  # the pool's only process
    found = {"sends": psutil.Process(), "encodes": psutil.Process(encoding)}
    port = int(brokers.split(",")[0].rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == "LISTEN" and connection.laddr
        if listens and listens.port == port and connection.pid:
            found["broker"] = psutil.Process(connection.pid)
    return found


def _spent(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


class Received:
    """What a consumer gets of the topics with a prefix."""

    def __init__(self, brokers: str, prefix: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": brokers})
        self._prefix = prefix
        self._consumer = Consumer({
            "bootstrap.servers": brokers,
            "group.id": f"{prefix}bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        })  # fmt: skip
        self.changes = self.repeated = self.bytes = 0
        self.lags_ms: list[float] = []
        self._seen: dict[tuple[str, int], tuple[int, set[bytes]]] = {}
        """The last commit ts of each partition, and the values that it has there."""
        self._ended: set[tuple[str, int]] = set()

    def topics(self) -> list[str]:
        """Return the names of the topics that are there."""
        there = self._admin.list_topics(timeout=60).topics
        return [name for name in there if name.startswith(self._prefix)]

    def assign(self) -> int:
        """Read all partitions that are there from their beginning; return how many."""
        partitions = [TopicPartition(n, p, 0) for n in self.topics() for p in range(_PARTITIONS)]
        self._consumer.assign(partitions)
        return len(partitions)

    def drain(self) -> None:
        """Read all that is there."""
        count = self.assign()
        deadline = time.monotonic() + _PATIENCE_S
        while len(self._ended) < count and time.monotonic() < deadline:
            self.take(1.0)

    def take(self, timeout_s: float) -> None:
        """Take the messages that are there, or come in that time."""
        for message in self._consumer.consume(1000, timeout_s):
            place = message.topic() or "", message.partition() or 0
            if message.error():
                self._ended.add(place)
                continue
            now_ms = time.time() * 1000
            headers = dict(message.headers() or ())
            key, value = message.key() or b"", message.value() or b""
            self.bytes += len(key) + len(value)
            if "start_ts" not in headers or message.value() is None:
                continue  # a table's schema, or a tombstone
            commit_ts = int(headers["commit_ts"] or 0)
            last, seen = self._seen.get(place, (0, set()))
            if commit_ts > last:
                seen = set()
            self._seen[place] = commit_ts, seen
            self.repeated += commit_ts < last or key + value in seen
            seen.add(key + value)
            self.changes += 1
            self.lags_ms.append(now_ms - tso.physical_ms(commit_ts))

    def remove_topics(self) -> None:
        """Remove the topics, as the next format needs the disk."""
        self._consumer.close()
        names = [*self.topics(), f"{self._prefix.removesuffix('.')}-resume"]
        for future in self._admin.delete_topics(names).values():
            future.result()


def _measure_lag(settings: Settings, made: History, lag_s: float, result: KafkaResult) -> None:
    relay, options = RelayLog.open(settings.relay.url), prepare_options(settings)
    got, done = Received(settings.kafka.brokers, _prefix(settings)), threading.Event()
    transactions = iter(made.transactions)
    each = round(_TRANSACTIONS_A_SECOND * _WINDOW_S)

    def land() -> None:
        lo, due_s = tso.compose(int(time.time() * 1000)), time.monotonic()
        while not done.is_set():
            due_s += _WINDOW_S
            done.wait(max(0.0, due_s - time.monotonic()))
            lo = _land_window(relay, lo, [next(transactions) for _ in range(each)])

    lander = threading.Thread(target=land, daemon=True)
    lander.start()
    stop = threading.Event()
    sender = threading.Thread(
        target=lambda: run_apply(
            settings, run_seconds=lag_s + 60, stop=stop,
            prepare=lambda windows: prepare(settings.relay.url, windows, options),
        ),
        daemon=True,
    )  # fmt: skip
    sender.start()
    time.sleep(min(10.0, lag_s / 2))  # until topics and connections are there
    got.assign()
    warm_until_s = time.monotonic() + 2
    while time.monotonic() < warm_until_s:
        got.take(0.01)
    got.lags_ms.clear()
    end_s = time.monotonic() + lag_s
    while time.monotonic() < end_s:
        got.take(0.01)
    done.set()
    stop.set()
    lander.join()
    sender.join()
    lags = sorted(got.lags_ms)
    if lags:
        result.lag_ms = {
            "p50": round(lags[len(lags) // 2], 1),
            "p95": round(lags[len(lags) * 95 // 100], 1),
            "longest": round(lags[-1], 1),
        }
    result.differences += got.repeated
    got.remove_topics()


def _land_window(relay: RelayLog, lo: int, chosen: list[list[Any]]) -> int:
    """Land transactions that were committed in the window's time, and return its end."""
    hi = max(lo + 2 * len(chosen), tso.compose(int(time.time() * 1000)))
    step = (hi - lo) // len(chosen)
    rows = [
        (lo + step * n, lo + step * n - 1, position, table.id, 1, kind, row)
        for n, changes in enumerate(chosen, 1)
        for position, (table, kind, row) in enumerate(changes)
    ]
    columns = [
        pa.array(column, each.type)
        for column, each in zip(zip(*rows, strict=True), PART_SCHEMA, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)
    part = relay.write_part(lo, hi, "bench", 0, [batch])
    assert part is not None
    tables = {str(table.id): table.to_json() for changes in chosen for table, _, _ in changes}
    relay.commit(
        WindowRecord(lo, hi, _CLUSTER, "bench", 0, len(chosen), len(rows), 1, (part,), tables)
    )
    return hi
