"""Sluice's own metrics: what the original has no name for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from etl.metrics.family import Family, Samples, Timed
from etl.metrics.sight import Sight
from etl.overview import STATES
from relay.measures import Durations
from relay.quality import SEVERITIES
from upstream import tso

__all__ = ["COUNTED", "TIMED"]

_STAGES = ("landed", "applied")
_VERIFYING_MS = 3_600_000


def _seconds(milliseconds: Callable[[Sight], float | None]) -> Callable[[Sight], Samples]:
    return lambda sight: _given(milliseconds(sight), 1000.0)


def _given(value: float | None, unit: float = 1.0) -> Samples:
    return [] if value is None else [((), value / unit)]


def _by_stage(name: str) -> Callable[[Sight], Samples]:
    def samples(sight: Sight) -> Samples:
        sources = (sight.totals.land, sight.totals.apply)
        return [((stage,), float(one.counts.get(name, 0))) for stage, one in zip(_STAGES, sources, strict=True)]

    return samples


def _kinds(sight: Sight) -> Samples:
    counts = sight.totals.apply.counts
    return [((kind,), float(counts.get(f"{kind}s", 0))) for kind in ("insert", "update", "delete")]


def _tables(sight: Sight) -> Samples:
    return [
        ((name, kind), float(number))
        for name, one in sight.tables.items()
        for kind, number in (("insert", one.inserts), ("update", one.updates), ("delete", one.deletes))
    ]


def _states(sight: Sight) -> Samples:
    seen = sight.overview
    parts = {"landing": seen.landing.state, "relay": seen.relay.state, "archive": seen.archive.state}
    parts["downstream"] = seen.downstream.state
    return [((part, state), float(state == now)) for part, now in parts.items() for state in STATES]


def _pump_states(sight: Sight) -> Samples:
    pumps = sight.overview.pumps
    return [((pump.node_id, state), float(state == pump.state)) for pump in pumps for state in STATES]


def _pump_lags(sight: Sight) -> Samples:
    return [((p.node_id,), p.lag_ms / 1000) for p in sight.overview.pumps if p.registry_state != "offline"]


def _silent_for(sight: Sight) -> Samples:
    sources = zip(("land", "apply"), (sight.totals.land, sight.totals.apply), strict=True)
    return [((name,), (sight.now_ms - one.noted_ms) / 1000) for name, one in sources if one.noted_ms]


def _failures(sight: Sight) -> Samples:
    return [((task,), 1.0) for task in sorted({str(each["what"]) for each in sight.overview.failures})]


def _answers(sight: Sight) -> Samples:
    errors = sight.overview.errors
    return [((party,), float(party not in errors)) for party in ("upstream", "relay", "downstream", "archive")]


def _jobs(sight: Sight) -> Samples:
    found = Counter((str(job["kind"]), str(job["state"])) for job in sight.overview.jobs)
    return [(key, float(number)) for key, number in sorted(found.items())]


def _of_jobs(name: str) -> Callable[[Sight], Samples]:
    def samples(sight: Sight) -> Samples:
        found: list[tuple[tuple[str, ...], float]] = []
        for job in sight.overview.jobs:
            value: Any = job["progress"][name]
            if value is not None:
                found.append(((str(job["kind"]), str(job["id"])), float(value)))
        return found

    return samples


def _restorable(sight: Sight) -> Samples:
    archive = sight.overview.archive
    return [((), tso.ms_between(archive.promised_ts, archive.hi) / 1000)] if archive.promised_ts else []


def _quality_failed(sight: Sight) -> Samples:
    failed = Counter(failure.severity for run in sight.quality for failure in run.failures)
    return [((severity,), float(failed.get(severity, 0))) for severity in SEVERITIES] if sight.quality else []


def _quality_age(sight: Sight) -> Samples:
    return [((), (sight.now_ms - sight.quality[0].at_ms) / 1000)] if sight.quality else []


def _stalled(sight: Sight) -> Samples:
    """Nothing when no process of it has run for an hour: then it stands still because it is switched off."""
    look = sight.verifying
    if sight.now_ms - look.looked_ms > _VERIFYING_MS:
        return []
    return [((), max(0.0, (sight.now_ms - look.stalled_ms) / 1000) if look.stalled_ms else 0.0)]


COUNTED = (
    Family(
        "sluice_lag_seconds", "how far the downstream is behind the clock", (),
        _seconds(lambda sight: sight.overview.lag_ms),
    ),
    Family(
        "sluice_land_lag_seconds", "how far the relay log is behind the clock", (),
        _seconds(lambda sight: sight.overview.landing.lag_ms),
    ),
    Family(
        "sluice_waiting_seconds", "how much of the upstream's time is landed and not applied", (),
        _seconds(lambda sight: sight.overview.relay.waiting_ms),
    ),
    Family(
        "sluice_archive_lag_seconds", "how much of the upstream's time is landed and not archived", (),
        _seconds(lambda sight: sight.overview.archive.lag_ms),
    ),
    Family("sluice_part_state", "1 for the state that a part is in", ("part", "state"), _states),
    Family("sluice_pump_state", "1 for the state that a pump is in", ("nodeID", "state"), _pump_states),
    Family("sluice_pump_lag_seconds", "how far a pump is behind the clock", ("nodeID",), _pump_lags),
    Family("sluice_answers", "0: who doesn't answer the one that looks", ("party",), _answers),
    Family("sluice_silent_seconds", "since a task of that kind last wrote down what it counts", ("task",), _silent_for),
    Family("sluice_task_stopped", "1 for each task that has stopped until somebody acts", ("task",), _failures),
    Family(
        "sluice_refused", "1: the downstream refused changes, which wait for a decision", (),
        lambda sight: [((), float(bool(sight.overview.downstream.refused)))],
    ),
    Family(
        "sluice_decisions_waiting", "decisions that no checkpoint has passed", (),
        lambda sight: [((), float(len(sight.overview.decisions)))],
    ),
    Family("sluice_windows", "windows landed and applied", ("stage",), _by_stage("windows"), "counter"),
    Family("sluice_transactions", "transactions landed and applied", ("stage",), _by_stage("transactions"), "counter"),
    Family("sluice_changes", "row changes landed and applied", ("stage",), _by_stage("changes"), "counter"),
    Family("sluice_ddls", "DDL statements landed and applied", ("stage",), _by_stage("ddls"), "counter"),
    Family(
        "sluice_other_writers", "sessions of others that were seen writing to replicated databases", (),
        lambda sight: [((), float(sight.totals.apply.counts.get("other_writers", 0)))], "counter",
    ),
    Family(
        "sluice_jobs_without_binlog", "DDL jobs that tell of rows that came without a binlog", (),
        lambda sight: [((), float(sight.totals.land.counts.get("without_binlog", 0)))], "counter",
    ),
    Family("sluice_retries", "how often landing and applying began anew", ("stage",), _by_stage("retries"), "counter"),
    Family("sluice_rows", "row changes applied by kind", ("kind",), _kinds, "counter"),
    Family(
        "sluice_net_rows", "rows written downstream: of several changes of a row the last", (),
        lambda sight: [((), float(sight.totals.apply.counts.get("rows", 0)))], "counter",
    ),
    Family("sluice_table_rows", "row changes applied by table and kind", ("table", "kind"), _tables, "counter"),
    Family(
        "sluice_landed_bytes", "bytes of parts landed", (),
        lambda sight: [((), float(sight.totals.land.counts.get("bytes", 0)))], "counter",
    ),
    Family(
        "sluice_relay_bytes", "what the relay log takes", (), lambda sight: _given(sight.overview.relay.bytes),
    ),
    Family(
        "sluice_archive_bytes", "what the archive takes with its bases", (),
        lambda sight: _given(sight.overview.archive.bytes),
    ),
    Family(
        "sluice_disk_free_bytes", "room on the fullest disk of relay log and archive", (),
        lambda sight: _given(sight.sizes.free_bytes if sight.sizes else None),
    ),
    Family(
        "sluice_disk_full_days", "in how many days a disk of relay log and archive is full at today's pace", (),
        lambda sight: _given(sight.sizes.full_in_days if sight.sizes else None),
    ),
    Family(
        "sluice_archive_faults", "files of the archive that can't be read, and holes in it", (),
        lambda sight: _given(float(len(sight.sizes.faults) + sight.sizes.holes) if sight.sizes else None),
    ),
    Family("sluice_restorable_seconds", "how far back one can restore from the archive's end", (), _restorable),
    Family(
        "sluice_verification_age_seconds", "since the table was verified whose verification is oldest", (),
        _seconds(lambda sight: sight.overview.verified.age_ms),
    ),
    Family(
        "sluice_verified_tables", "tables that were ever verified", (),
        lambda sight: [((), float(len(sight.verified)))],
    ),
    Family(
        "sluice_verification_differences", "rows that differed when their tables were verified last", (),
        lambda sight: [((), float(sum(table.differences for table in sight.verified)))],
    ),
    Family(
        "sluice_verification_problems", "tables that could not be compared", (),
        lambda sight: [((), float(sum(bool(table.problem) for table in sight.verified)))],
    ),
    Family(
        "sluice_verification_rows_total", "rows that continuous verification has compared", (),
        lambda sight: [((), float(sight.verifying.rows))] if sight.verifying.looked_ms else [], kind="counter",
    ),
    Family(
        "sluice_verification_stalled_seconds",
        "since when continuous verification has rows to compare and can compare none; 0 while it can", (), _stalled,
    ),
    Family("sluice_quality_failed", "expectations not met in the newest run", ("severity",), _quality_failed),
    Family("sluice_quality_age_seconds", "since the newest run that looked at the data's quality", (), _quality_age),
    Family("sluice_jobs", "jobs that aren't over", ("kind", "state"), _jobs),
    Family("sluice_job_rows_per_second", "the pace of a job", ("kind", "job"), _of_jobs("rows_per_s")),
    Family("sluice_job_bytes_per_second", "the pace of a job", ("kind", "job"), _of_jobs("bytes_per_s")),
    Family("sluice_job_left_seconds", "what a job will take at that pace", ("kind", "job"), _of_jobs("left_s")),
    Family("sluice_job_percent", "how much of a job is done", ("kind", "job"), _of_jobs("percent")),
)  # fmt: skip


def _stages(sight: Sight) -> dict[str, Durations]:
    land, apply = sight.totals.land.durations, sight.totals.apply.durations
    names = (("land", land, "window"), ("prepare", apply, "prepare"), ("send", apply, "send"))
    found = {name: source.get(key, Durations()) for name, source, key in names}
    return {**found, "commit": apply.get("commit", Durations()), "ddl": apply.get("ddl", Durations())}


TIMED = (Timed("sluice_stage_seconds", "what the stages of a window or batch take", "stage", _stages),)
