"""Sample pipelines on request, and at most once every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.etl.cached_value import SourcePoller
from sluice.etl.operate.metrics import drainer_metrics, sluice_metrics
from sluice.etl.operate.metrics.family import histogram, metric
from sluice.etl.operate.metrics.pipeline_sample import PipelineSample, sample
from sluice.etl.settings.pipelines import NamedPipeline

__all__ = ["PipelineCollector"]

_CACHE_TTL_S = 5.0
_SAMPLE_TIMEOUT_S = 1.0
_OVERVIEW_TIME_SHARE = 0.6
"""The share of the timeout that the overview may spend waiting for its sources."""
_MAX_SAMPLE_AGE_MS = 60_000
"""Samples older than this are not reported any more."""


@dataclass(frozen=True, slots=True)
class _SampleSet:
    """Samples of the pipelines with their age, and the pipelines that can't be sampled now.

    When, on the clock of time.monotonic.
    """

    seen: Mapping[str, PipelineSample]
    age_ms: Mapping[str, int]
    unreachable: frozenset[str]
    took_s: float
    at: float


class PipelineCollector:
    """The metrics of pipelines.

    A source that fails is a metric, too, never an error. A pipeline that does not respond in time
    is reported from its last sample, if that is at most a minute old. Threads may share it.
    """

    def __init__(
        self,
        pipelines: Mapping[str, NamedPipeline],
        tables: int = 0,
        fresh_s: float = _CACHE_TTL_S,
        patience_s: float = _SAMPLE_TIMEOUT_S,
    ) -> None:
        """Collect from `pipelines`.

        `tables`: this many tables of each pipeline, those with the most changes, have counters of
        their own. `patience_s`: how long a sample takes at most.
        """
        self._pipelines = pipelines
        self._tables = tables
        self._ttl_s = fresh_s
        self._timeout_s = patience_s
        self._poller = SourcePoller()
        self._lock = threading.Lock()
        self._samples: _SampleSet | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def text(self) -> bytes:
        """Return Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)

    def describe(self) -> Iterator[Metric]:
        """Return no families: prometheus_client asks first, and nothing is sampled for that."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a sample, as prometheus_client's collectors do."""
        looked = self._latest()
        yield from families(looked.seen)
        yield _by_pipeline(
            "sluice_pipeline_readable",
            "0: the pipeline's settings or relay log can't be read",
            dict.fromkeys(looked.seen, 1.0) | dict.fromkeys(looked.unreachable, 0.0),
        )
        ages = {name: age_ms / 1000 for name, age_ms in looked.age_ms.items()}
        yield _by_pipeline(
            "sluice_pipeline_seen_seconds", "how long ago the pipeline was looked at", ages
        )
        took = GaugeMetricFamily(
            "sluice_metrics_look_seconds", "how long the last look at all pipelines took"
        )
        took.add_metric([], looked.took_s)
        yield took

    def _latest(self) -> _SampleSet:
        with self._lock:  # of concurrent callers one collects
            if self._samples is None or time.monotonic() - self._samples.at > self._ttl_s:
                self._samples = self._look()
            return self._samples

    def _look(self) -> _SampleSet:
        began = time.monotonic()
        patience_s = self._timeout_s * _OVERVIEW_TIME_SHARE
        questions = {
            name: partial(self._sample_pipeline, pipeline, patience_s)
            for name, pipeline in self._pipelines.items()
        }
        answers = self._poller.poll(questions, self._timeout_s)
        now_ms, ended = time.time_ns() // 1_000_000, time.monotonic()
        ages = {name: max(0, now_ms - at_ms) for name, at_ms in answers.updated_ms.items()}
        seen = {
            name: value
            for name, value in sorted(answers.values.items())
            if ages[name] <= _MAX_SAMPLE_AGE_MS
        }
        silent = frozenset(answers.errors)
        return _SampleSet(seen, {name: ages[name] for name in seen}, silent, ended - began, ended)

    def _sample_pipeline(self, pipeline: NamedPipeline, patience_s: float) -> PipelineSample:
        return sample(pipeline.settings, self._tables, patience_s)


def _by_pipeline(name: str, text: str, samples: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["pipeline"])
    for pipeline in sorted(samples):
        family.add_metric([pipeline], samples[pipeline])
    return family


def families(seen: Mapping[str, PipelineSample]) -> Iterator[Metric]:
    """Yield the metrics of pipelines, which are given by name."""
    for family in (*drainer_metrics.COUNTED, *sluice_metrics.COUNTED):
        yield metric(family, seen)
    for timed in (*drainer_metrics.TIMED, *sluice_metrics.TIMED):
        yield histogram(timed, seen)
    yield drainer_metrics.read_sizes(seen)
