"""Prometheus metrics under the original's names. See `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

if TYPE_CHECKING:
    from pump_service.store.records import StoreStats


class BatchHistogram:
    """A histogram that counts many equal observations at once: calls of a batch are answered together."""

    def __init__(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = list(buckets)
        self._lock = Lock()
        self._counts: dict[tuple[str, ...], list[float]] = {}

    def observe(self, value: float, times: int, labels: tuple[str, ...]) -> None:
        """Count `value` `times` times."""
        at = bisect_left(self._bounds, value)
        with self._lock:
            row = self._counts.get(labels)
            if row is None:
                row = self._counts[labels] = [0.0] * (len(self._bounds) + 2)
            row[at] += times
            row[-1] += value * times

    def collect(self) -> Iterator[Metric]:
        """prometheus_client's collector protocol."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        with self._lock:
            rows = {labels: list(row) for labels, row in self._counts.items()}
        for labels, row in rows.items():
            total = 0.0
            buckets = []
            for bound, count in zip([*map(str, self._bounds), "+Inf"], row, strict=False):
                total += count
                buckets.append((bound, total))
            family.add_metric(labels, buckets, sum_value=row[-1])
        yield family


class _StoreCollector:
    def __init__(self, stats: Callable[[], StoreStats], write_errors: Callable[[], int]) -> None:
        self._stats = stats
        self._write_errors = write_errors

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        prefix = "binlog_pump_storage_"

        def gauge(name: str, text: str, value: float) -> Metric:
            return GaugeMetricFamily(prefix + name, text, value=value)

        def counter(name: str, text: str, value: float) -> Metric:
            return CounterMetricFamily(prefix + name, text, value=value)

        size = GaugeMetricFamily(prefix + "storage_size_bytes", "disk of the data directory, bytes", labels=["type"])
        size.add_metric(["capacity"], stats.capacity_bytes)
        size.add_metric(["available"], stats.available_bytes)
        yield size
        yield gauge("gc_ts", "everything through this TSO is given up", stats.gc_ts)
        yield gauge("max_commit_ts", "physical part (ms) of maxCommitTS", stats.max_commit_ts >> 18)
        yield counter("query_tikv_count", "transactions TiKV was asked about", stats.resolver_queries)
        yield counter("deleted_kv", "index entries removed by garbage collection", stats.deleted_keys)
        errors = CounterMetricFamily(prefix + "error_count", "errors", labels=["type"])
        errors.add_metric(["write_binlog"], self._write_errors())
        errors.add_metric(["batch_write_kv"], stats.index_errors)
        errors.add_metric(["read_value"], stats.corrupt_records)
        errors.add_metric(["feed_pre_write_value"], stats.missing_prewrites)
        yield errors
        chaser = CounterMetricFamily(prefix + "slow_chaser_count", "slow index", labels=["type"])
        chaser.add_metric(["turned_on"], stats.slow_index_count)
        yield chaser
        # The following have no counterpart in the original.
        yield counter("records", "records made durable", stats.records)
        yield counter("record_bytes", "payload bytes made durable", stats.bytes)
        yield counter("transactions", "transactions that left the sorter", stats.transactions)
        yield counter("batches", "writes of the value log", stats.batches)
        yield counter("write_seconds", "time in writing and syncing the value log", stats.write_seconds)
        yield gauge("pending_prewrites", "Prewrites without a verdict", stats.pending_prewrites)
        yield gauge("queued_bytes", "payload bytes waiting for the disk", stats.queued_bytes)
        yield gauge("value_log_bytes", "size of the value log", stats.value_log_bytes)
        yield gauge("writable", "0 while Prewrites are refused for lack of space", float(stats.writable))
        yield gauge("failed", "1 after a write or fsync failed; start the pump again", float(stats.failed))


class Metrics:
    """All metrics of a pump in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.write_errors = 0  # calls that the store did not take
        # 50 µs, doubling, 18 buckets: the original's.
        buckets = [0.00005 * 2**i for i in range(18)]
        self.rpc = BatchHistogram(
            "binlog_pump_rpc_duration_seconds", "duration of a call", ("method", "label"), buckets
        )
        self.registry.register(self.rpc)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def watch_store(self, stats: Callable[[], StoreStats]) -> None:
        """Add the store's metrics; `stats` is called at each scrape."""
        self.registry.register(_StoreCollector(stats, lambda: self.write_errors))
