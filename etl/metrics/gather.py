"""Looks at pipelines when it is asked to, and not more often than every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from errors import SluiceError, ours
from etl.metrics.families import families
from etl.metrics.sight import Sight, look
from etl.settings.pipelines import NamedPipeline

__all__ = ["Gatherer"]

_FRESH_S = 5.0


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was seen of the pipelines, and of which nothing could be; when, on the clock of time.monotonic."""

    seen: Mapping[str, Sight]
    failed: Mapping[str, SluiceError]
    took_s: float
    at: float


class Gatherer:
    """The metrics of pipelines. What can't be looked at is a metric too, never an error. Threads may share it."""

    def __init__(self, pipelines: Mapping[str, NamedPipeline], tables: int = 0, fresh_s: float = _FRESH_S) -> None:
        """`tables`: so many tables of each pipeline, those with the most changes, have counters of their own."""
        self._pipelines = pipelines
        self._tables = tables
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._looked: _Looked | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def text(self) -> bytes:
        """Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)

    def describe(self) -> Iterator[Metric]:
        """prometheus_client asks before it collects: nothing is looked at for that."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """prometheus_client's collector protocol."""
        looked = self._newest()
        yield from families(looked.seen)
        yield _readable(looked)
        took = GaugeMetricFamily("sluice_metrics_look_seconds", "how long the last look at all pipelines took")
        took.add_metric([], looked.took_s)
        yield took

    def failures(self) -> Mapping[str, SluiceError]:
        """Pipelines that could not be looked at the last time, and why."""
        return self._newest().failed

    def _newest(self) -> _Looked:
        with self._lock:  # of several who ask at a time one looks
            if self._looked is None or time.monotonic() - self._looked.at > self._fresh_s:
                self._looked = self._look()
            return self._looked

    def _look(self) -> _Looked:
        began = time.monotonic()
        seen: dict[str, Sight] = {}
        failed: dict[str, SluiceError] = {}

        def look_at(name: str, pipeline: NamedPipeline) -> None:
            try:
                seen[name] = look(pipeline.settings, self._tables)
            except Exception as error:
                failed[name] = ours(error)

        threads = [
            threading.Thread(target=look_at, args=each, name="metrics", daemon=True) for each in self._pipelines.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended = time.monotonic()
        return _Looked(dict(sorted(seen.items())), failed, ended - began, ended)


def _readable(looked: _Looked) -> Metric:
    family = GaugeMetricFamily(
        "sluice_pipeline_readable", "0: the pipeline's settings or relay log can't be read", labels=["pipeline"]
    )
    for name in sorted({*looked.seen, *looked.failed}):
        family.add_metric([name], float(name in looked.seen))
    return family
