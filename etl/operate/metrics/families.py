"""All metrics of pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from sluice.etl.operate.metrics import drainer_metrics as originals
from sluice.etl.operate.metrics import sluice_metrics as own
from sluice.etl.operate.metrics.family import histogram, metric
from sluice.etl.operate.metrics.pipeline_sample import PipelineSample

__all__ = ["families"]


def families(seen: Mapping[str, PipelineSample]) -> Iterator[Metric]:
    """Yield the metrics of pipelines, which are given by name."""
    for family in (*originals.COUNTED, *own.COUNTED):
        yield metric(family, seen)
    for timed in (*originals.TIMED, *own.TIMED):
        yield histogram(timed, seen)
    yield originals.read_sizes(seen)
