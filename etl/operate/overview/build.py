"""Collect the state of everything that belongs to a pipeline, side by side, into an overview."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from sluice.etl import operate
from sluice.etl.cached_value import PollResults
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.ownership import PipelineIdentity
from sluice.etl.operate.assurance import verified_part
from sluice.etl.operate.node_http import capture_lines
from sluice.etl.operate.overview.blockers import blockers
from sluice.etl.operate.overview.model import (
    IDLE,
    LATE_LAG_MS,
    PAUSED,
    STOPPED,
    UNKNOWN,
    WAITING,
    WORKING,
    ArchivePart,
    DownstreamPart,
    LandingPart,
    Overview,
    PumpPart,
    RelayPart,
)
from sluice.etl.operate.overview.sizes import StorageSizes
from sluice.etl.operate.overview.sources import RelayEnds, poll_all
from sluice.etl.operate.topics import topic_traffic
from sluice.etl.settings import Settings
from sluice.relay import StopMark, WindowRecord
from sluice.relay.measures import CounterDocument, CounterTotals
from sluice.relay.verification_log import TableVerified
from sluice.tidb import tso

__all__ = ["overview"]

_POLL_TIMEOUT_S = 3.5
_RATE_WINDOW_MS = 60_000


def overview(settings: Settings, patience_s: float = _POLL_TIMEOUT_S) -> Overview:
    """Return the state of replication now.

    Takes `patience_s` at most: a source that does not respond by then is named in `errors`, and its
    last answer stands in the overview, with its time. Needs no Spark. Sizes are at most a minute
    old.
    """
    pipeline = PipelineIdentity.from_settings(settings)
    answers = poll_all(settings, patience_s)
    seen = _Inputs.from_results(answers)
    found = Overview(
        at_ms=time.time_ns() // 1_000_000,
        pipeline=pipeline.id,
        pumps=seen.pumps,
        landing=_landing_part(seen, settings),
        relay=_relay_part(seen, settings),
        archive=_archive_part(seen, settings),
        downstream=_downstream_part(seen, settings, pipeline.downstream),
        verified=verified_part(seen.verified.values()),
        overrides=tuple(
            each for each in seen.orders.get("overrides", ()) if each["used_ms"] is None
        ),
        jobs=tuple(seen.orders.get("jobs", ())),
        failures=tuple(seen.orders.get("failures", ())),
        held_back=(),
        errors=answers.errors,
        silent_ms=answers.unresponsive_since_ms,
        as_of_ms=answers.updated_ms,
    )
    return replace(found, held_back=tuple(blockers(found, seen.orders)))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The answers, with something in the place of those that are missing."""

    missing: frozenset[str]
    now_ms: int
    upstream_ms: float
    """The time upstream, Unix ms."""
    pumps: tuple[PumpPart, ...]
    first: WindowRecord | None
    last: WindowRecord | None
    stopped: StopMark | None
    checkpoint: Checkpoint | None
    orders: dict[str, Any]
    totals: CounterTotals
    verified: dict[str, TableVerified]
    sizes: StorageSizes | None

    @classmethod
    def from_results(cls, answers: PollResults) -> _Inputs:
        now, values = time.time_ns() // 1_000_000, answers.values
        upstream_ms = now + values.get("clock", 0.0)
        relay: RelayEnds | None = values.get("relay")
        return cls(
            frozenset(answers.unknown),
            now,
            upstream_ms,
            tuple(_pump_part(pump, upstream_ms) for pump in values.get("upstream", ())),
            relay.first if relay is not None else None,
            relay.last if relay is not None else None,
            relay.stopped if relay is not None else None,
            values.get("downstream"),
            values.get("orders", {}),
            values.get("measures", CounterTotals()),
            values.get("verified", {}),
            values.get("archive"),
        )

    def applied_ts(self) -> int:
        """Return the checkpoint, 0: none.

        While the downstream does not respond, the newest that is known: its last answer, or what
        applying noted since.
        """
        at_ts = self.checkpoint.commit_ts if self.checkpoint is not None else 0
        return max(at_ts, self.totals.apply.at_ts) if "downstream" in self.missing else at_ts

    def behind_ms(self, ts: int) -> float | None:
        return max(0.0, self.upstream_ms - tso.physical_ms(ts)) if ts else None

    def has_failed(self, *tasks: str) -> bool:
        return any(failure["what"] in tasks for failure in self.orders.get("failures", ()))


def _pump_part(pump: dict[str, Any], now_ms: float) -> PumpPart:
    state = {"online": WORKING, "offline": IDLE, "paused": PAUSED}.get(pump["state"], WAITING)
    lag_ms = max(0.0, now_ms - tso.physical_ms(pump["max_commit_ts"]))
    return PumpPart(
        pump["node_id"],
        pump["host"],
        WAITING if state == WORKING and lag_ms > LATE_LAG_MS else state,
        pump["state"],
        pump["max_commit_ts"],
        lag_ms,
        pump["captured_cluster_id"] is not None,
        pump["captured_share"],
        tuple(capture_lines(pump["capture"], int(now_ms))) if pump["capture"] else (),
    )


def _landing_part(seen: _Inputs, settings: Settings) -> LandingPart:
    at_ts = seen.last.hi if seen.last is not None else 0
    lag_ms, measured = seen.behind_ms(at_ts), seen.totals.land
    if "relay" in seen.missing:
        state = UNKNOWN
    elif seen.has_failed(operate.LAND):
        state = STOPPED
    elif seen.orders.get("land_paused"):
        state = PAUSED
    else:
        state = _state_by_lag(lag_ms, settings)
    transactions, changes = _rates(measured, seen.now_ms)
    return LandingPart(
        state, at_ts, lag_ms, transactions, changes, measured.counts.get("windows", 0)
    )


def _state_by_lag(lag_ms: float | None, settings: Settings) -> str:
    if lag_ms is None:
        return IDLE
    return WAITING if lag_ms > max(LATE_LAG_MS, 3.0 * settings.window.idle_interval_ms) else WORKING


def _rates(measured: CounterDocument, now_ms: int) -> tuple[float, float]:
    """Transactions and changes a second in the last minute."""
    steps = [step for step in measured.hour if step.at_ms > now_ms - _RATE_WINDOW_MS]
    span_s = sum(step.span_ms for step in steps) / 1000
    if not span_s:
        return 0.0, 0.0
    return (
        round(sum(step.transactions for step in steps) / span_s, 1),
        round(sum(step.changes for step in steps) / span_s, 1),
    )


def _relay_part(seen: _Inputs, settings: Settings) -> RelayPart:
    lo, hi = (seen.first.lo if seen.first else 0), (seen.last.hi if seen.last else 0)
    at = seen.applied_ts()
    state = UNKNOWN if "relay" in seen.missing else WORKING if hi else IDLE
    waiting_ms = max(0.0, tso.ms_between(at, hi)) if at and hi else None
    size = seen.sizes.relay_bytes if seen.sizes is not None else None
    return RelayPart(state, settings.relay.url, lo, hi, waiting_ms, size, settings.relay.keep)


def _archive_part(seen: _Inputs, settings: Settings) -> ArchivePart:
    found = seen.sizes
    if found is None:
        state = UNKNOWN if "archive" in seen.missing else IDLE
        return ArchivePart(state, settings.archive_url, 0, 0, None, None, 0, 0)
    lag_ms = (
        max(0.0, tso.ms_between(found.hi, seen.last.hi))
        if found.hi and seen.last is not None
        else None
    )
    state = STOPPED if seen.has_failed("archive", "compact") else WORKING if found.hi else IDLE
    if found.faults:
        state = STOPPED
    return ArchivePart(
        state,
        found.url,
        found.lo,
        found.hi,
        lag_ms,
        found.archive_bytes,
        found.snapshots,
        found.promised_ts,
        found.unrestorable,
    )


def _downstream_part(seen: _Inputs, settings: Settings, name: str) -> DownstreamPart:
    checkpoint, at_ts = seen.checkpoint, seen.applied_ts()
    refused = (
        checkpoint.in_flight.refused
        if checkpoint is not None and checkpoint.in_flight is not None
        else None
    )
    lag_ms = seen.behind_ms(at_ts)
    if "downstream" in seen.missing:
        state = UNKNOWN
    elif seen.has_failed(operate.APPLY) or seen.stopped is not None or refused is not None:
        state = STOPPED
    elif seen.orders.get("apply_paused") or _is_at_its_end(seen, at_ts):
        state = PAUSED
    else:
        state = _state_by_lag(lag_ms, settings)
    transactions, changes = _rates(seen.totals.apply, seen.now_ms)
    return DownstreamPart(
        state,
        name,
        at_ts,
        lag_ms,
        transactions,
        changes,
        refused.text if refused is not None else "",
        refused.token if refused is not None else "",
        checkpoint.pending.commit_ts
        if checkpoint is not None and checkpoint.pending is not None
        else None,
        checkpoint.consistent if checkpoint is not None else None,
        len(topic_traffic(seen.totals.apply.counts)),
    )


def _is_at_its_end(seen: _Inputs, at_ts: int) -> bool:
    """Return whether applying has got to where operators want it to wait."""
    until = seen.orders.get("apply_until_ts")
    return until is not None and at_ts >= until
