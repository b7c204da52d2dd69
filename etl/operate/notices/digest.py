"""Write the digest of a day: how replication was, from what Sluice keeps of it anyway."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sluice.etl.display_units import counted, format_duration, format_size
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.operate.overview import Overview, latest_sizes, overview
from sluice.etl.settings import Settings
from sluice.relay import RelayLog
from sluice.relay.jobs import FINAL_STATES, Jobs
from sluice.relay.measures import (
    DAY,
    MAX_CONFLICTS,
    ConflictHistory,
    CounterStore,
    RefusalHistory,
)
from sluice.relay.notices import Notice, Notices
from sluice.relay.verification_log import CONTINUOUS, Verifications
from sluice.tidb import tso
from sluice.tidb.table_name import abbreviate

__all__ = ["Digest", "write_digest"]

_PATIENCE_S = 10.0
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of the 24 hours before it was written, for people."""

    subject: str
    text: str
    command: str = "sluice top --once"


def write_digest(settings: Settings, name: str, now_ms: int | None = None) -> Digest:
    """Return the digest of the pipeline `name` for the 24 hours before `now_ms` (Unix ms).

    Times are UTC. Raises RelayError, OSError.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    since, relay = now - DAY.span_ms, settings.open_relay()
    seen = overview(settings, _PATIENCE_S)
    open_causes = [one for one in Notices(relay.place).load() if not one.over_ms]
    option = f" --pipeline {name}" if name else ""
    lines = [
        f"Pipeline {name or 'without a name'}, {_utc(since)} to {_utc(now)}",
        "",
        *_attention(seen, open_causes),
        "",
        *_replication(settings, relay, seen, since),
        "",
        *_safety(settings, relay, seen),
        "",
        *_jobs(relay, since),
        "",
        f"Now: sluice top --once{option}",
        f"Rows: sluice verify{option}",
        f"The past: sluice archive status{option}",
        f"Jobs: sluice jobs list{option}",
    ]
    found = len(open_causes) or len(seen.held_back)
    state = f"{found} to look at" if found else "all is well"
    subject = f"Sluice{f' {name}' if name else ''}: {state}, {_utc(now)}"
    return Digest(subject, "\n".join(lines), f"sluice top --once{option}")


def _attention(seen: Overview, open_causes: Sequence[Notice]) -> Iterator[str]:
    for one in open_causes[:_MAX_SHOWN]:
        yield f"! {one.text.partition(chr(10))[0]} (since {_utc(one.since_ms)})"
    if len(open_causes) > _MAX_SHOWN:
        yield f"! and {len(open_causes) - _MAX_SHOWN} more"
    if not open_causes:
        yield from (f"! {line}" for line in seen.held_back)
        if not seen.held_back:
            yield "Nothing needs an operator."


def _replication(
    settings: Settings, relay: RelayLog, seen: Overview, since_ms: int
) -> Iterator[str]:
    lag = "unknown" if seen.lag_ms is None else _milliseconds(seen.lag_ms)
    yield f"Lag now: {lag}"
    totals = CounterStore(relay, downstream_name(settings.target)).totals()
    landed = [step for step in totals.land.day if step.at_ms > since_ms]
    applied = [step for step in totals.apply.day if step.at_ms > since_ms]
    lags = sorted(step.lag_ms for step in applied)
    if lags:
        at = {name: _milliseconds(_percentile(lags, of)) for name, of in (("p50", 50), ("p95", 95))}
        yield (
            f"Lag: p50 {at['p50']}, p95 {at['p95']}, max {_milliseconds(lags[-1])}"
            " (of the longest in each 5 minutes)"
        )
    else:
        yield "Lag: nothing was recorded in these hours"
    yield f"Row changes: {sum(step.changes for step in applied):,}"
    yield f"Transactions: {sum(step.transactions for step in applied):,}"
    yield f"Windows landed: {sum(step.windows for step in landed):,}"
    yield f"DDL landed: {sum(step.ddls for step in landed):,}"
    errors = sum(step.errors for step in (*landed, *applied))
    yield f"Errors, retried ones included: {errors:,}"
    yield from _refusals(relay, since_ms)
    yield from _conflicts(relay, since_ms)
    if seen.downstream.refused:
        yield f"Waits for a decision: {seen.downstream.refused}"


def _refusals(relay: RelayLog, since_ms: int) -> Iterator[str]:
    refused = RefusalHistory(relay).since(since_ms)
    yield f"Transactions refused by the downstream: {len(refused):,}"
    for one in refused[-_MAX_SHOWN:]:
        attempts = counted(one.attempts, "attempt")
        yield f"  {attempts}, last at {_utc(one.at_ms)}: {one.text.partition(chr(10))[0]}"
    if len(refused) > _MAX_SHOWN:
        yield f"  and {len(refused) - _MAX_SHOWN} before"


def _conflicts(relay: RelayLog, since_ms: int) -> Iterator[str]:
    """Count what lost conflicts; a pipeline that never had any has no line."""
    every = ConflictHistory(relay).load()
    if every:
        since = tso.compose(since_ms)
        lost = sum(one.commit_ts > since for one in every)
        more = " or more" if lost == len(every) >= MAX_CONFLICTS else ""
        yield (
            f"Changes that lost against younger ones of the downstream: {lost:,}{more}"
            " (sluice txn conflicts)"
        )


def _safety(settings: Settings, relay: RelayLog, seen: Overview) -> Iterator[str]:
    last = next(
        (run for run in Verifications(relay).runs(_MAX_SHOWN) if run.how != CONTINUOUS), None
    )
    if last is None:
        yield "Verification: both sides were never compared in one run"
    else:
        rows = sum(table.rows for table in last.tables)
        differ = counted(last.differences, "row differs", "rows differ")
        found = differ if last.differences else "no row of them differs"
        compared = counted(rows, "row")
        yield f"Verification: {last.job} at {_utc(last.at_ms)}, {compared} compared, {found}"
    yield f"Last results: {seen.verified.text}"
    if seen.verified.differing:
        names = abbreviate(seen.verified.differing, _MAX_SHOWN, kind="tables")
        yield f"Rows differ in: {names}"
    for one in seen.verified.uncompared[:_MAX_SHOWN]:
        yield f"Not compared: {one['table']}: {one['problem']}"
    if len(seen.verified.uncompared) > _MAX_SHOWN:
        yield f"Not compared: and {len(seen.verified.uncompared) - _MAX_SHOWN} more"
    archive = seen.archive
    if archive.promised_ts:
        yield f"Restorable: {tso.text(archive.promised_ts)} to {tso.text(archive.hi)}"
    elif archive.unrestorable:
        names = abbreviate(archive.unrestorable, _MAX_SHOWN, kind="tables")
        yield f"Restorable: not all tables now; not {names}"
    else:
        yield "Restorable: no moment yet"
    if "archive" in seen.errors or (sizes := latest_sizes(settings)) is None:
        yield "Disk: unknown"
        return
    free = "" if sizes.free_bytes is None else f", {format_size(sizes.free_bytes)} free"
    days = sizes.full_in_days
    full = "" if days is None else f", full in about {days:.0f} days"
    yield (
        f"Disk: relay log {format_size(sizes.relay_bytes)}, archive"
        f" {format_size(sizes.archive_bytes)}{free}{full}"
    )


def _jobs(relay: RelayLog, since_ms: int) -> Iterator[str]:
    statuses = [job.status() for job in Jobs.for_pipeline(relay).list()]
    found = [
        one
        for one in statuses
        if one.state not in FINAL_STATES or max(one.entry.made_ms, one.spec.made_ms) > since_ms
    ]
    yield f"Jobs: {len(found)}" if found else "Jobs: none"
    for one in found[-_MAX_SHOWN:]:
        why = f": {one.entry.message}" if one.entry.message else ""
        yield f"  {one.spec.id}: {one.state} at {_utc(one.entry.made_ms)}{why}"


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least `percent` of the `ordered` ones don't exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _milliseconds(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms < 10_000 else format_duration(ms / 1000)


def _utc(ms: int) -> str:
    return tso.time_text(tso.compose(ms))
