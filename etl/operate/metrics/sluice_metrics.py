"""Sluice's own metrics: what the original has no name for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from sluice.etl.operate.metrics.family import HistogramFamily, MetricFamily, Samples
from sluice.etl.operate.metrics.pipeline_sample import PipelineSample
from sluice.etl.operate.overview import STATES
from sluice.relay.measures import Durations
from sluice.relay.quality import SEVERITIES
from sluice.tidb import tso

__all__ = ["COUNTED", "TIMED"]

_STAGES = ("landed", "applied")
_KINDS = ("insert", "update", "delete")
_VERIFYING_MS = 3_600_000


def _seconds(
    milliseconds: Callable[[PipelineSample], float | None],
) -> Callable[[PipelineSample], Samples]:
    return lambda sight: _sample_if_known(milliseconds(sight), 1000.0)


def _sample_if_known(value: float | None, unit: float = 1.0) -> Samples:
    return [] if value is None else [((), value / unit)]


def _by_stage(name: str) -> Callable[[PipelineSample], Samples]:
    def samples(sight: PipelineSample) -> Samples:
        sources = (sight.totals.land, sight.totals.apply)
        return [
            ((stage,), float(one.counts.get(name, 0)))
            for stage, one in zip(_STAGES, sources, strict=True)
        ]

    return samples


def _kinds(sight: PipelineSample) -> Samples:
    counts = sight.totals.apply.counts
    return [((kind,), float(counts.get(f"{kind}s", 0))) for kind in _KINDS]


def _tables(sight: PipelineSample) -> Samples:
    return [
        ((name, kind), float(getattr(one, f"{kind}s")))
        for name, one in sight.tables.items()
        for kind in _KINDS
    ]


def _topics(what: str) -> Callable[[PipelineSample], Samples]:
    prefix = f"topic.{what}."

    def samples(sight: PipelineSample) -> Samples:
        counts = sight.totals.apply.counts
        return [
            ((name.removeprefix(prefix),), float(count))
            for name, count in counts.items()
            if name.startswith(prefix)
        ]

    return samples


def _states(sight: PipelineSample) -> Samples:
    seen = sight.overview
    parts = {
        "landing": seen.landing.state,
        "relay": seen.relay.state,
        "archive": seen.archive.state,
        "downstream": seen.downstream.state,
    }
    return [((part, state), float(state == now)) for part, now in parts.items() for state in STATES]


def _pump_states(sight: PipelineSample) -> Samples:
    pumps = sight.overview.pumps
    return [
        ((pump.node_id, state), float(state == pump.state)) for pump in pumps for state in STATES
    ]


def _pump_lags(sight: PipelineSample) -> Samples:
    return [
        ((p.node_id,), p.lag_ms / 1000)
        for p in sight.overview.pumps
        if p.registry_state != "offline"
    ]


def _unresponsive_seconds(sight: PipelineSample) -> Samples:
    sources = zip(("land", "apply"), (sight.totals.land, sight.totals.apply), strict=True)
    return [
        ((name,), (sight.now_ms - one.noted_ms) / 1000) for name, one in sources if one.noted_ms
    ]


def _failures(sight: PipelineSample) -> Samples:
    return [
        ((task,), 1.0) for task in sorted({str(each["what"]) for each in sight.overview.failures})
    ]


def _responding(sight: PipelineSample) -> Samples:
    errors = sight.overview.errors
    return [
        ((party,), float(party not in errors))
        for party in ("upstream", "relay", "downstream", "archive")
    ]


def _count(stage: str, name: str) -> Callable[[PipelineSample], Samples]:
    return lambda sight: [((), float(getattr(sight.totals, stage).counts.get(name, 0)))]


def _jobs(sight: PipelineSample) -> Samples:
    found = Counter((str(job["kind"]), str(job["state"])) for job in sight.overview.jobs)
    return [(key, float(number)) for key, number in sorted(found.items())]


def _job_samples(name: str) -> Callable[[PipelineSample], Samples]:
    def samples(sight: PipelineSample) -> Samples:
        found: list[tuple[tuple[str, ...], float]] = []
        for job in sight.overview.jobs:
            value: Any = job["progress"][name]
            if value is not None:
                found.append(((str(job["kind"]), str(job["id"])), float(value)))
        return found

    return samples


def _restorable(sight: PipelineSample) -> Samples:
    archive = sight.overview.archive
    if not archive.promised_ts:
        return []
    return [((), tso.ms_between(archive.promised_ts, archive.hi) / 1000)]


def _quality_failed(sight: PipelineSample) -> Samples:
    failed = Counter(failure.severity for run in sight.quality for failure in run.failures)
    return (
        [((severity,), float(failed.get(severity, 0))) for severity in SEVERITIES]
        if sight.quality
        else []
    )


def _quality_age(sight: PipelineSample) -> Samples:
    return [((), (sight.now_ms - sight.quality[0].at_ms) / 1000)] if sight.quality else []


def _stalled(sight: PipelineSample) -> Samples:
    """Return how long verification stands still, in seconds.

    Nothing when no process of it has run for an hour: then it is switched off.
    """
    look = sight.verifying
    if sight.now_ms - look.looked_ms > _VERIFYING_MS:
        return []
    return [((), max(0.0, (sight.now_ms - look.stalled_ms) / 1000) if look.stalled_ms else 0.0)]


COUNTED = (
    MetricFamily(
        "sluice_lag_seconds",
        "how far the downstream is behind the clock",
        (),
        _seconds(lambda sight: sight.overview.lag_ms),
    ),
    MetricFamily(
        "sluice_land_lag_seconds",
        "how far the relay log is behind the clock",
        (),
        _seconds(lambda sight: sight.overview.landing.lag_ms),
    ),
    MetricFamily(
        "sluice_waiting_seconds",
        "how much of the upstream's time is landed and not applied",
        (),
        _seconds(lambda sight: sight.overview.relay.waiting_ms),
    ),
    MetricFamily(
        "sluice_archive_lag_seconds",
        "how much of the upstream's time is landed and not archived",
        (),
        _seconds(lambda sight: sight.overview.archive.lag_ms),
    ),
    MetricFamily(
        "sluice_part_state", "1 for the state that a part is in", ("part", "state"), _states
    ),
    MetricFamily(
        "sluice_pump_state", "1 for the state that a pump is in", ("nodeID", "state"), _pump_states
    ),
    MetricFamily(
        "sluice_pump_lag_seconds", "how far a pump is behind the clock", ("nodeID",), _pump_lags
    ),
    MetricFamily("sluice_answers", "0: the party does not respond", ("party",), _responding),
    MetricFamily(
        "sluice_silent_seconds",
        "since a task of that kind last wrote down what it counts",
        ("task",),
        _unresponsive_seconds,
    ),
    MetricFamily(
        "sluice_task_stopped",
        "1 for each task that has stopped until an operator acts",
        ("task",),
        _failures,
    ),
    MetricFamily(
        "sluice_refused",
        "1: the downstream refused changes, which wait for an override",
        (),
        lambda sight: [((), float(bool(sight.overview.downstream.refused)))],
    ),
    MetricFamily(
        "sluice_overrides_waiting",
        "overrides that no checkpoint has passed",
        (),
        lambda sight: [((), float(len(sight.overview.overrides)))],
    ),
    MetricFamily(
        "sluice_windows", "windows landed and applied", ("stage",), _by_stage("windows"), "counter"
    ),
    MetricFamily(
        "sluice_transactions",
        "transactions landed and applied",
        ("stage",),
        _by_stage("transactions"),
        "counter",
    ),
    MetricFamily(
        "sluice_changes",
        "row changes landed and applied",
        ("stage",),
        _by_stage("changes"),
        "counter",
    ),
    MetricFamily(
        "sluice_ddls", "DDL statements landed and applied", ("stage",), _by_stage("ddls"), "counter"
    ),
    MetricFamily(
        "sluice_topic_messages",
        "messages sent to a topic",
        ("topic",),
        _topics("messages"),
        "counter",
    ),
    MetricFamily(
        "sluice_topic_bytes",
        "bytes of their keys and values",
        ("topic",),
        _topics("bytes"),
        "counter",
    ),
    MetricFamily(
        "sluice_topic_errors",
        "errors of sending to a topic",
        ("topic",),
        _topics("errors"),
        "counter",
    ),
    MetricFamily(
        "sluice_other_writers",
        "sessions of others that were seen writing to replicated databases",
        (),
        _count("apply", "other_writers"),
        "counter",
    ),
    MetricFamily(
        "sluice_returned_transactions",
        "transactions left out because loopback control shows that they came from downstream",
        (),
        _count("apply", "returned"),
        "counter",
    ),
    MetricFamily(
        "sluice_conflicts",
        "changes that lost against younger ones of the downstream itself",
        (),
        _count("apply", "conflicts"),
        "counter",
    ),
    MetricFamily(
        "sluice_jobs_without_binlog",
        "DDL jobs that show rows that came without a binlog",
        (),
        _count("land", "without_binlog"),
        "counter",
    ),
    MetricFamily(
        "sluice_retries",
        "how often landing and applying began again",
        ("stage",),
        _by_stage("retries"),
        "counter",
    ),
    MetricFamily("sluice_rows", "row changes applied by kind", ("kind",), _kinds, "counter"),
    MetricFamily(
        "sluice_net_rows",
        "rows written downstream: of several changes of a row the last",
        (),
        _count("apply", "rows"),
        "counter",
    ),
    MetricFamily(
        "sluice_table_rows",
        "row changes applied by table and kind",
        ("table", "kind"),
        _tables,
        "counter",
    ),
    MetricFamily(
        "sluice_landed_bytes", "bytes of parts landed", (), _count("land", "bytes"), "counter"
    ),
    MetricFamily(
        "sluice_relay_bytes",
        "what the relay log takes",
        (),
        lambda sight: _sample_if_known(sight.overview.relay.bytes),
    ),
    MetricFamily(
        "sluice_archive_bytes",
        "what the archive takes with its snapshots",
        (),
        lambda sight: _sample_if_known(sight.overview.archive.bytes),
    ),
    MetricFamily(
        "sluice_disk_free_bytes",
        "room on the fullest disk of relay log and archive",
        (),
        lambda sight: _sample_if_known(sight.sizes.free_bytes if sight.sizes else None),
    ),
    MetricFamily(
        "sluice_disk_full_days",
        "in how many days a disk of relay log and archive is full at today's pace",
        (),
        lambda sight: _sample_if_known(sight.sizes.full_in_days if sight.sizes else None),
    ),
    MetricFamily(
        "sluice_archive_faults",
        "files of the archive that can't be read, and holes in it",
        (),
        lambda sight: _sample_if_known(
            float(len(sight.sizes.faults) + sight.sizes.holes) if sight.sizes else None
        ),
    ),
    MetricFamily(
        "sluice_restorable_seconds",
        "how far back one can restore from the archive's end",
        (),
        _restorable,
    ),
    MetricFamily(
        "sluice_verification_age_seconds",
        "since the table was verified whose verification is oldest",
        (),
        _seconds(lambda sight: sight.overview.verified.age_ms),
    ),
    MetricFamily(
        "sluice_verified_tables",
        "tables that were ever verified",
        (),
        lambda sight: [((), float(len(sight.verified)))],
    ),
    MetricFamily(
        "sluice_verification_differences",
        "rows that differed when their tables were verified last",
        (),
        lambda sight: [((), float(sum(table.differences for table in sight.verified)))],
    ),
    MetricFamily(
        "sluice_verification_problems",
        "tables that could not be compared",
        (),
        lambda sight: [((), float(sum(bool(table.problem) for table in sight.verified)))],
    ),
    MetricFamily(
        "sluice_verification_rows_total",
        "rows that continuous verification has compared",
        (),
        lambda sight: [((), float(sight.verifying.rows))] if sight.verifying.looked_ms else [],
        kind="counter",
    ),
    MetricFamily(
        "sluice_verification_stalled_seconds",
        "since when continuous verification has rows to compare and can compare none; 0 while"
        " it can",
        (),
        _stalled,
    ),
    MetricFamily(
        "sluice_quality_failed",
        "expectations not met in the newest run",
        ("severity",),
        _quality_failed,
    ),
    MetricFamily(
        "sluice_quality_age_seconds",
        "since the newest run that looked at the data's quality",
        (),
        _quality_age,
    ),
    MetricFamily("sluice_jobs", "jobs that aren't over", ("kind", "state"), _jobs),
    MetricFamily(
        "sluice_job_rows_per_second",
        "the pace of a job",
        ("kind", "job"),
        _job_samples("rows_per_s"),
    ),
    MetricFamily(
        "sluice_job_bytes_per_second",
        "the pace of a job",
        ("kind", "job"),
        _job_samples("bytes_per_s"),
    ),
    MetricFamily(
        "sluice_job_left_seconds",
        "what a job will take at that pace",
        ("kind", "job"),
        _job_samples("left_s"),
    ),
    MetricFamily(
        "sluice_job_percent", "how much of a job is done", ("kind", "job"), _job_samples("percent")
    ),
)


def _stages(sight: PipelineSample) -> dict[str, Durations]:
    land, apply = sight.totals.land.durations, sight.totals.apply.durations
    names = (
        ("land", land, "window"),
        *((name, apply, name) for name in ("prepare", "send", "commit", "ddl")),
    )
    return {name: source.get(key, Durations()) for name, source, key in names}


TIMED = (
    HistogramFamily(
        "sluice_stage_seconds", "what the stages of a window or batch take", "stage", _stages
    ),
)
