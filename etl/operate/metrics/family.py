"""Turn samples of several pipelines into prometheus_client's metrics.

Each has the label `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from sluice.etl.operate.metrics.pipeline_sample import PipelineSample
from sluice.relay.measures import BOUNDS_S, Durations

__all__ = ["EXACT_NAME", "HistogramFamily", "MetricFamily", "Samples", "histogram", "metric"]

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of labels, and a number."""
EXACT_NAME = "exact"
"""A counter under exactly this name: the original's have no `_total` at the end, which the library
would add.
"""
_PIPELINE = "pipeline"


class MetricFamily(NamedTuple):
    """A metric, and its samples of one pipeline."""

    name: str
    text: str
    labels: tuple[str, ...]
    of: Callable[[PipelineSample], Samples]
    kind: str = "gauge"
    """``gauge``, ``counter`` or EXACT."""


class HistogramFamily(NamedTuple):
    """A histogram of seconds, and what each of its label's values is made of.

    One value without a label.
    """

    name: str
    text: str
    label: str
    of: Callable[[PipelineSample], Mapping[str, Durations]]


def metric(family: MetricFamily, seen: Mapping[str, PipelineSample]) -> Metric:
    """Return the metric of pipelines, which are given by name."""
    labels = (_PIPELINE, *family.labels)
    samples = [
        ((name, *values), number)
        for name, sight in seen.items()
        for values, number in family.of(sight)
    ]
    if family.kind == EXACT_NAME:
        exact = Metric(family.name, family.text, "unknown")
        for values, number in samples:
            exact.add_sample(family.name, dict(zip(labels, values, strict=True)), number)
        return exact
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    found = made(family.name, family.text, labels=labels)
    for values, number in samples:
        found.add_metric(values, number)
    return found


def histogram(timed: HistogramFamily, seen: Mapping[str, PipelineSample]) -> Metric:
    """Return the histogram of pipelines, which are given by name."""
    labels = (_PIPELINE, timed.label) if timed.label else (_PIPELINE,)
    found = HistogramMetricFamily(timed.name, timed.text, labels=labels)
    for name, sight in seen.items():
        for value, durations in timed.of(sight).items():
            values = (name, value) if timed.label else (name,)
            found.add_metric(values, _buckets(durations), sum_value=durations.sum_s)
    return found


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    buckets, seen = [], 0
    for bound, count in zip((*BOUNDS_S, float("inf")), durations.counts, strict=True):
        seen += count
        buckets.append((floatToGoString(bound), float(seen)))  # type: ignore[no-untyped-call] # it has no types
    return buckets
