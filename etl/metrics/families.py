"""All metrics of pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from etl.metrics import originals, own
from etl.metrics.family import histogram, metric
from etl.metrics.sight import Sight

__all__ = ["families"]


def families(seen: Mapping[str, Sight]) -> Iterator[Metric]:
    """The metrics of pipelines by their names."""
    for family in (*originals.COUNTED, *own.COUNTED):
        yield metric(family, seen)
    for timed in (*originals.TIMED, *own.TIMED):
        yield histogram(timed, seen)
    yield originals.read_sizes(seen)
