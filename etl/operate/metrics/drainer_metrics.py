"""Export the original Drainer's metrics, with its names, labels and units.

So its boards and alerts go on working. Differences: times are measured by batch of windows, where
the original measured by statement; `read_binlog_size` has a count and a sum, and no buckets;
`queue_size` isn't there, for there are no such queues.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import HistogramMetricFamily, Metric

from sluice.etl.operate.metrics.family import EXACT_NAME, HistogramFamily, MetricFamily, Samples
from sluice.etl.operate.metrics.pipeline_sample import PipelineSample
from sluice.relay.measures import CounterDocument, Durations
from sluice.tidb import tso

__all__ = ["COUNTED", "TIMED", "read_sizes"]

_DRAINER = "binlog_drainer_"
_ALL = "all"
"""Stands for a pump's id where landing reads pumps side by side and can't distinguish them."""
_EVENTS = {
    "Insert": "inserts",
    "Update": "updates",
    "Delete": "deletes",
    "DDL": "ddls",
    "savepoint": "commits",
}


def _positions(sight: PipelineSample) -> Samples:
    landed = sight.overview.landing.at_ts
    pumps = [pump.node_id for pump in sight.overview.pumps if pump.registry_state != "offline"]
    return [((pump,), float(tso.physical_ms(landed))) for pump in pumps] if landed else []


def _checkpoint(sight: PipelineSample) -> Samples:
    """Return the downstream's checkpoint, or applying's last note while it does not respond."""
    at_ts = sight.overview.downstream.at_ts or sight.totals.apply.at_ts
    return [((), float(tso.physical_ms(at_ts)))] if at_ts else []


def _events(sight: PipelineSample) -> Samples:
    counts = sight.totals.apply.counts
    return [((label,), float(counts.get(name, 0))) for label, name in _EVENTS.items()]


def _errors(sight: PipelineSample) -> Samples:
    found: dict[str, int] = {}
    for source in (sight.totals.land, sight.totals.apply):
        for name, count in source.counts.items():
            if name.startswith("error."):
                kind = name.removeprefix("error.")
                found[kind] = found.get(kind, 0) + count
    return [((kind,), float(count)) for kind, count in sorted(found.items())]


def _ddls(sight: PipelineSample) -> Samples:
    return [((), float(sight.totals.apply.counts.get("ddls", 0)))]


COUNTED = (
    MetricFamily(
        _DRAINER + "pump_position",
        "through when (ms) everything of a pump is landed",
        ("nodeID",),
        _positions,
    ),
    MetricFamily(
        _DRAINER + "checkpoint_tso", "physical part (ms) of the checkpoint", (), _checkpoint
    ),
    MetricFamily(
        _DRAINER + "event",
        "row changes applied by kind, DDL, and checkpoints",
        ("type",),
        _events,
        EXACT_NAME,
    ),
    MetricFamily(
        _DRAINER + "error_count",
        "errors of landing and applying by kind",
        ("type",),
        _errors,
        EXACT_NAME,
    ),
    MetricFamily(_DRAINER + "ddl_jobs_total", "DDL statements applied", (), _ddls, "counter"),
)


def _samples_of(source: CounterDocument, *names: str) -> Mapping[str, Durations]:
    return {name: source.durations.get(name, Durations()) for name in names}


def _unlabelled(durations: Durations | None) -> Mapping[str, Durations]:
    return {"": durations or Durations()}


def _queries(sight: PipelineSample) -> Mapping[str, Durations]:
    found = _samples_of(sight.totals.apply, "send", "commit", "ddl")
    return {"exec": found["send"], "commit": found["commit"], "ddl": found["ddl"]}


TIMED = (
    HistogramFamily(
        _DRAINER + "checkpoint_delay_seconds",
        "how far the checkpoint was behind the clock when it moved",
        "",
        lambda sight: _unlabelled(sight.totals.apply.durations.get("delay")),
    ),
    HistogramFamily(
        _DRAINER + "execute_duration_time",
        "seconds it took to write a batch downstream",
        "",
        lambda sight: _unlabelled(sight.totals.apply.durations.get("execute")),
    ),
    HistogramFamily(
        _DRAINER + "query_duration_time",
        "of these, seconds for rows (exec), commits and DDL",
        "type",
        _queries,
    ),
    HistogramFamily(
        _DRAINER + "binlog_reach_duration_time",
        "seconds from a commit upstream to the relay log",
        "nodeID",
        lambda sight: {_ALL: _samples_of(sight.totals.land, "reach")["reach"]},
    ),
)


def read_sizes(seen: Mapping[str, PipelineSample]) -> Metric:
    """Count and sum of the transactions that were read from pumps, in bytes."""
    found = HistogramMetricFamily(
        _DRAINER + "read_binlog_size",
        "bytes of the transactions landed",
        labels=("pipeline", "nodeID"),
    )
    for name, sight in seen.items():
        counts = sight.totals.land.counts
        number = float(counts.get("transactions", 0))
        found.add_metric((name, _ALL), [("+Inf", number)], sum_value=float(counts.get("bytes", 0)))
    return found
