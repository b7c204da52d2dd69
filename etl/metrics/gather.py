"""Looks at pipelines when it is asked to, and not more often than every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from etl.asking import Parties
from etl.metrics.families import families
from etl.metrics.sight import Sight, look
from etl.settings.pipelines import NamedPipeline

__all__ = ["Gatherer"]

_FRESH_S = 5.0
_PATIENCE_S = 1.0
_OF_OVERVIEW = 0.6
"""What of the patience the overview has for those it asks."""
_OLD_MS = 60_000
"""What was seen longer ago isn't told any more."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was seen of the pipelines, how long ago, and which can't be looked at now; when, on the clock of
    time.monotonic.
    """

    seen: Mapping[str, Sight]
    age_ms: Mapping[str, int]
    silent: frozenset[str]
    took_s: float
    at: float


class Gatherer:
    """The metrics of pipelines. What can't be looked at is a metric too, never an error; who doesn't answer soon is
    told of as he was seen last, a minute ago at most. Threads may share it.
    """

    def __init__(
        self,
        pipelines: Mapping[str, NamedPipeline],
        tables: int = 0,
        fresh_s: float = _FRESH_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`tables`: so many tables of each pipeline, those with the most changes, have counters of their own.
        `patience_s`: how long a look takes at most.
        """
        self._pipelines = pipelines
        self._tables = tables
        self._fresh_s = fresh_s
        self._patience_s = patience_s
        self._parties = Parties()
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
        yield _by_pipeline(
            "sluice_pipeline_readable",
            "0: the pipeline's settings or relay log can't be read",
            dict.fromkeys(looked.seen, 1.0) | dict.fromkeys(looked.silent, 0.0),
        )
        ages = {name: age_ms / 1000 for name, age_ms in looked.age_ms.items()}
        yield _by_pipeline("sluice_pipeline_seen_seconds", "how long ago the pipeline was looked at", ages)
        took = GaugeMetricFamily("sluice_metrics_look_seconds", "how long the last look at all pipelines took")
        took.add_metric([], looked.took_s)
        yield took

    def _newest(self) -> _Looked:
        with self._lock:  # of several who ask at a time one looks
            if self._looked is None or time.monotonic() - self._looked.at > self._fresh_s:
                self._looked = self._look()
            return self._looked

    def _look(self) -> _Looked:
        began = time.monotonic()
        patience_s = self._patience_s * _OF_OVERVIEW
        questions = {name: partial(self._look_at, pipeline, patience_s) for name, pipeline in self._pipelines.items()}
        answers = self._parties.ask(questions, self._patience_s)
        now_ms, ended = time.time_ns() // 1_000_000, time.monotonic()
        ages = {name: max(0, now_ms - at_ms) for name, at_ms in answers.as_of_ms.items()}
        seen = {name: said for name, said in sorted(answers.said.items()) if ages[name] <= _OLD_MS}
        silent = frozenset(answers.errors)
        return _Looked(seen, {name: ages[name] for name in seen}, silent, ended - began, ended)

    def _look_at(self, pipeline: NamedPipeline, patience_s: float) -> Sight:
        return look(pipeline.settings, self._tables, patience_s)


def _by_pipeline(name: str, text: str, samples: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["pipeline"])
    for pipeline in sorted(samples):
        family.add_metric([pipeline], samples[pipeline])
    return family
