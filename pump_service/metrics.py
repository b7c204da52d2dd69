"""Export Prometheus metrics under the original's names; docs/reference/pump.md lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from threading import Lock
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
    pushadd_to_gateway,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import default_handler
from prometheus_client.utils import floatToGoString

from sluice.pump_service.histogram import Histogram, doubling_bounds
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.pump_service.capture import CaptureStatus
    from sluice.pump_service.store import Store
    from sluice.pump_service.store.records import StoreStats

_STORE = "binlog_pump_storage_"


class BatchHistogram:
    """Count many equal observations at once: the calls of a batch are answered together."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = list(bounds)
        self._lock = Lock()
        self._rows: dict[tuple[str, ...], Histogram] = {}

    def observe(self, value: float, times: int, labels: tuple[str, ...]) -> None:
        """Count `value` `times` times."""
        with self._lock:
            row = self._rows.get(labels)
            if row is None:
                row = self._rows[labels] = Histogram(self._bounds)
            row.observe(value, times)

    def collect(self) -> Iterator[Metric]:
        """Implement prometheus_client's collector protocol."""
        with self._lock:
            yield _histogram(self._name, self._text, self._labels, self._rows)


def _histogram(
    name: str, text: str, labels: Sequence[str], rows: dict[tuple[str, ...], Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, row in rows.items():
        counts, total = row.read()
        buckets = []
        seen = 0
        for bound, count in zip([*row.bounds, inf], counts, strict=True):
            seen += count
            buckets.append((floatToGoString(bound), float(seen)))  # type: ignore[no-untyped-call] # it has no types
        family.add_metric(values, buckets, sum_value=total)
    return family


def _counter(
    name: str, text: str, value: float | Mapping[str, float], label: str = "type"
) -> Metric:
    """Return a counter under exactly this name.

    The library would append `_total`; the original's counters don't have it.
    """
    family = Metric(name, text, "counter")
    for key, number in value.items() if isinstance(value, Mapping) else [("", value)]:
        family.add_sample(name, {label: key} if key else {}, number)
    return family


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the registry in Prometheus' text format 0.0.4."""
    return _exact_names(generate_latest(registry))


def push(address: str, instance: str, registry: CollectorRegistry, timeout_s: float = 5.0) -> None:
    """Add the registry to a Pushgateway under job `binlog`, as the original does.

    Raises OSError if the gateway does not accept it.
    """

    def send(
        url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        return default_handler(url, method, timeout, headers, _exact_names(data))

    pushadd_to_gateway(
        address,
        job="binlog",
        registry=registry,
        grouping_key={"instance": instance},
        timeout=timeout_s,
        handler=send,
    )


def _exact_names(text: bytes) -> bytes:
    """Remove the `_total` that the library appends to the headers of our counters."""
    return re.sub(rb"(?m)^(# (?:HELP|TYPE) binlog_\w+)_total ", rb"\1 ", text)


class _StoreCollector:
    def __init__(self, store: Store, write_errors: Callable[[], int]) -> None:
        self._store = store
        self._write_errors = write_errors

    def collect(self) -> Iterator[Metric]:
        stats = self._store.stats()
        yield from self._originals(stats)
        yield from self._own(stats)
        yield from self._timings()

    def _originals(self, stats: StoreStats) -> Iterator[Metric]:
        size = GaugeMetricFamily(
            _STORE + "storage_size_bytes", "disk of the data directory, bytes", labels=["type"]
        )
        size.add_metric(["capacity"], stats.capacity_bytes)
        size.add_metric(["available"], stats.available_bytes)
        yield size
        yield _gauge(
            "gc_ts",
            "physical part (ms) of the TSO through which everything is given up",
            tso.physical_ms(stats.gc_ts),
        )
        yield _gauge(
            "done_gc_ts",
            "gc_ts (ms) once the last round is finished",
            tso.physical_ms(stats.done_gc_ts),
        )
        yield _gauge(
            "max_commit_ts",
            "physical part (ms) of maxCommitTS",
            tso.physical_ms(stats.max_commit_ts),
        )
        yield _counter(
            _STORE + "query_tikv_count",
            "times TiKV was asked about a transaction",
            stats.resolver_queries,
        )
        yield _counter(
            _STORE + "deleted_kv_total",
            "index entries removed by garbage collection",
            stats.deleted_keys,
        )
        errors = {
            "write_binlog": self._write_errors(),
            "write_binlog_batch": int(stats.failed),
            "read_value": stats.corrupt_records,
            "feed_pre_write_value": stats.missing_prewrites,
            "batch_write_kv": stats.index_errors,
        }
        yield _counter(_STORE + "error_count", "errors", errors)
        chaser = {
            "turned_on": stats.slow_index_count,
            "turned_off": stats.slow_index_ends,
            "recovery": stats.recoveries,
            "catch_up": stats.catch_ups,
        }
        yield _counter(
            _STORE + "slow_chaser_count",
            "the index was too slow and taken from the value log",
            chaser,
        )

    def _own(self, stats: StoreStats) -> Iterator[Metric]:
        """Yield metrics without a counterpart in the original."""
        yield _counter(_STORE + "records_total", "records made durable", stats.records)
        yield _counter(_STORE + "record_bytes_total", "payload bytes made durable", stats.bytes)
        yield _counter(
            _STORE + "transactions_total", "transactions that left the sorter", stats.transactions
        )
        yield _counter(
            _STORE + "skipped_bytes_total",
            "unreadable bytes met in the value log",
            stats.skipped_bytes,
        )
        yield _counter(
            _STORE + "late_commits_total", "Commits at or below maxCommitTS", stats.late_commits
        )
        found = stats.contradictions
        yield _counter(
            _STORE + "contradictions_total", "Commits that contradict an earlier verdict", found
        )
        yield _gauge("pending_prewrites", "Prewrites without a verdict", stats.pending_prewrites)
        yield _gauge(
            "oldest_pending_ts",
            "start (ms) of the oldest of them, 0 without",
            tso.physical_ms(stats.oldest_pending_ts),
        )
        yield _gauge("queued_bytes", "payload bytes waiting for the disk", stats.queued_bytes)
        yield _gauge("queued_for_index", "records waiting for the index", stats.queued_for_index)
        yield _gauge(
            "catching_up", "1 while the index is made from the value log", stats.catching_up
        )
        yield _gauge("value_log_bytes", "size of the value log", stats.value_log_bytes)
        yield _gauge("segments", "files of the value log", stats.segments)
        yield _gauge("writable", "0 while Prewrites are refused for lack of space", stats.writable)
        yield _gauge(
            "failed", "1 after a write or fsync failed; start the pump again", stats.failed
        )

    def _timings(self) -> Iterator[Metric]:
        timings = self._store.timings
        yield _histogram(
            _STORE + "write_binlog_size",
            "payload bytes of a record and of a batch",
            ["type"],
            {("single",): timings.single_size, ("batch",): timings.batch_size},
        )
        yield _histogram(
            _STORE + "write_binlog_duration_time",
            "seconds a record took to be durable, a batch, and the steps of a batch",
            ["type"],
            {
                ("single",): timings.single,
                ("batch",): timings.batch,
                ("to_disk",): timings.to_disk,
                ("fsync",): timings.fsync,
                ("rotate",): timings.rotate,
            },
        )
        # The original's pump uses this name, too.
        yield _histogram(
            "binlog_drainer_slow_chaser_catchup_time_seconds",
            "seconds of one pass over what the index had missed",
            [],
            {(): timings.catch_up},
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_STORE + name, text, value=float(value))


class _CaptureCollector:
    def __init__(self, status: Callable[[], CaptureStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        prefix = "binlog_pump_capture_"
        yield GaugeMetricFamily(
            prefix + "frontier_ts",
            "physical part (ms) of the commit ts through which all changes are stored",
            value=float(tso.physical_ms(status.frontier_ts)),
        )  # fmt: skip
        regions = GaugeMetricFamily(
            prefix + "regions", "pieces of the key space by state", labels=["state"]
        )
        for state, number in status.regions.items():
            regions.add_metric([state], number)
        yield regions
        share = GaugeMetricFamily(
            prefix + "share", "1, for the share of the tables that is captured", labels=["share"]
        )
        share.add_metric([status.share or "1/1"], 1)
        yield share
        replicas = GaugeMetricFamily(
            prefix + "replica_differs",
            "1 if another pump that captures the cluster holds something else",
            labels=["pump"],
        )
        for node_id, difference in status.replicas.items():
            replicas.add_metric([node_id], int(bool(difference)))
        yield replicas
        for name, text, value in (
            (
                "unmatched_prewrites",
                "prewrites in memory without an outcome",
                status.unmatched_prewrites,
            ),
            ("memory_bytes", "bytes of changes in memory", status.memory_bytes),
            (
                "failed",
                "1 after an error that ended the capture, see the log",
                int(bool(status.failure)),
            ),
            (
                "held_back",
                "1 while a lock or a region holds the frontier back",
                int(bool(status.held_back_by)),
            ),
        ):
            yield GaugeMetricFamily(prefix + name, text, value=float(value))
        yield _counter(
            prefix + "received_bytes_total", "bytes that TiKV sent", status.received_bytes
        )
        yield _counter(
            prefix + "spilled_changes_total",
            "committed changes that went through a file",
            status.spilled_changes,
        )
        yield _counter(
            prefix + "restarts_total",
            "times the capture began again after an error",
            status.restarts,
        )
        yield _counter(
            prefix + "events_total", "rows, resolved timestamps and errors of TiKV", status.events
        )


class PumpMetrics:
    """Hold all metrics of a pump in its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.write_errors = 0  # calls that the store rejected
        self.lost = 0  # WriteBinlog calls that failed for any reason
        self.late_drainers: dict[str, float] = {}  # by node id: checks that found it late
        self.rpc = BatchHistogram(
            "binlog_pump_rpc_duration_seconds",
            "duration of a call",
            ("method", "label"),
            doubling_bounds(0.00005, 18),  # the original's
        )
        self.registry.register(self.rpc)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def watch_store(self, store: Store) -> None:
        """Add the store's metrics, which are read at each scrape."""
        self.registry.register(_StoreCollector(store, lambda: self.write_errors))

    def watch_capture(self, status: Callable[[], CaptureStatus]) -> None:
        """Add the capture's metrics, which are read at each scrape."""
        self.registry.register(_CaptureCollector(status))

    def collect(self) -> Iterator[Metric]:
        """Implement prometheus_client's collector protocol for counters other than calls."""
        yield _counter("binlog_pump_loss_binlog_count", "WriteBinlog calls that failed", self.lost)
        yield _counter(
            "binlog_pump_detected_drainer_binlog_purge_count",
            "times a drainer was found close to, or behind, what is purged",
            dict(self.late_drainers),
            "id",
        )
