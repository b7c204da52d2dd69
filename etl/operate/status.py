"""Read the state of replication and operators' orders; nothing is changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from sluice.errors import SluiceError
from sluice.etl.cached_value import SourcePoller
from sluice.etl.changes.masks import MaskKeyError
from sluice.etl.changes.rules import rules_digest
from sluice.etl.downstream import Checkpoint, CheckpointError, DownstreamError
from sluice.etl.downstream.sinks import hold_checkpoint, read_checkpoint
from sluice.etl.operate.assurance import restorable, verifications
from sluice.etl.operate.node_http import captures
from sluice.etl.operate.topics import topic_traffic
from sluice.etl.settings import Downstream, Kafka, Settings, Target, Upstream
from sluice.relay import Failure, RelayLog
from sluice.relay.jobs import Jobs
from sluice.relay.measures import CounterStore
from sluice.relay.rule_changes import RuleChanges
from sluice.tidb import tso

__all__ = [
    "LAND",
    "failures",
    "list_overrides",
    "locked_checkpoint",
    "newest_checkpoint",
    "now_ms",
    "orders",
    "pumps_with_captures",
    "read_checkpoint_in_time",
    "registered_pumps",
    "status",
]

LAND = "land"
_CONNECT_TIMEOUT_S, _CHECKPOINT_TIMEOUT_S = 5, 15.0


def status(settings: Settings) -> dict[str, Any]:
    """Return how far replication is and what operators asked for, as JSON values.

    A part that doesn't answer within seconds is named in ``errors``; all are asked side by side.
    Raises RelayError, OSError when the relay log can't be read.
    """
    relay = settings.open_relay()
    first, last = relay.first(), relay.last()
    questions: dict[str, Callable[[], Any]] = {
        "downstream": lambda: _checkpoint_of(settings, last.cluster_id if last is not None else 0),
        "upstream": lambda: pumps_with_captures(settings.upstream),
        "archive": lambda: restorable(settings),
        "clock": lambda: _upstream_skew_ms(settings),
    }
    asked = SourcePoller().poll(questions, _CHECKPOINT_TIMEOUT_S)
    checkpoint: Checkpoint | None = asked.values.get("downstream")
    at = checkpoint.commit_ts if checkpoint else None
    refused = checkpoint.in_flight.refused if checkpoint and checkpoint.in_flight else None
    upstream_ms = now_ms() + round(asked.values.get("clock", 0.0))
    waiting = max(0, tso.ms_between(at, last.hi)) if last is not None and at is not None else None
    return {
        "relay": {
            "url": relay.url,
            "lo": first.lo if first else None,
            "hi": last.hi if last else None,
        },
        "landed_from": _landed_from(relay),
        "checkpoint": at,
        "consistent": checkpoint.consistent if checkpoint else None,
        "written_by": _written_by(settings.target, relay, checkpoint),
        "blocked": {"id": refused.token, "text": refused.text} if refused else None,
        "ddl_under_way": (
            checkpoint.pending.commit_ts if checkpoint and checkpoint.pending else None
        ),
        "landed_not_applied_ms": waiting,
        "lag_ms": max(0, upstream_ms - tso.physical_ms(at)) if at else None,
        "topics": _topics(settings, relay),
        **orders(settings),
        **verifications(relay),
        "restorable": asked.values.get("archive"),
        **_rules(settings, relay),
        "pumps": asked.values.get("upstream", []),
        "errors": asked.errors,
    }


def _rules(settings: Settings, relay: RelayLog) -> dict[str, Any]:
    """Return which tables follow former rules, as far as a process that applies has noted it.

    `rules_changed`: the settings have rules by which no process applies yet.
    """
    known = RuleChanges(relay.place).load()
    try:
        has_changed = known.are_others(rules_digest(settings.filters, settings.routes))
    except MaskKeyError:  # this command may run where the key isn't
        has_changed = False
    return {
        "rules_changed": has_changed,
        "outdated": [
            {
                "table": table.name,
                "why": table.why,
                "since_ts": table.since_ts,
                "command": table.command,
            }
            for table in known.tables
        ],
    }


def _landed_from(relay: RelayLog) -> str | None:
    """Return what landing reads, `binlogs` or `captured changes`; None before its first window."""
    known = relay.known_pumps.load()
    if known.is_captured:
        return "captured changes"
    return "binlogs" if known.pumps else None


def _checkpoint_of(settings: Settings, cluster_id: int) -> Checkpoint | None:
    """Return the checkpoint, also the one that a copy wrote before anything was landed.

    `cluster_id` 0: not known.
    """
    if not cluster_id:
        from sluice.tidb import PDClient, PDError

        try:
            with PDClient(
                settings.upstream.pd_urls, tls=settings.upstream.tls(), timeout_s=_CONNECT_TIMEOUT_S
            ) as pd:
                cluster_id = pd.cluster_id
        except PDError:
            return None  # `errors` has the upstream's failure
    return read_checkpoint_in_time(settings.target, cluster_id)


def _written_by(target: Target, relay: RelayLog, checkpoint: Checkpoint | None) -> str | None:
    """Return which other writer wrote the checkpoint; None if no other did."""
    owned = relay.ownership()
    if (
        checkpoint is None
        or owned is None
        or not owned.begun
        or checkpoint.owner == owned.pipeline
        or not isinstance(target, Downstream)
    ):
        return None
    return f"pipeline {checkpoint.owner}" if checkpoint.owner else "a Drainer"


def _topics(settings: Settings, relay: RelayLog) -> list[dict[str, Any]]:
    """Return what each topic got so far, by name; [] of a downstream without topics.

    Each is complete through the checkpoint, so `lag_ms` is the lag of all of them.
    """
    if not isinstance(settings.target, Kafka):
        return []
    counts = CounterStore(relay, settings.downstream_name).totals().apply.counts
    return [asdict(traffic) for traffic in topic_traffic(counts)]


def _upstream_skew_ms(settings: Settings) -> float:
    """Return how far PD's clock is ahead of this machine's, 0 if PD doesn't answer."""
    from sluice.etl.upstream_clock import upstream_skew_ms

    return upstream_skew_ms(settings)


def orders(settings: Settings) -> dict[str, Any]:
    """Return what operators asked for, and unfinished jobs, as JSON values."""
    relay = settings.open_relay()
    control, stop = relay.control(), relay.stopped()
    return {
        "stopped": stop.why if stop else None,
        "failures": [asdict(failure) for failure in failures(relay)],
        "land_paused": control.land_paused,
        "apply_paused": control.apply_paused,
        "apply_until_ts": control.apply_until_ts,
        "overrides": list_overrides(settings),
        "jobs": [job.status().to_json() for job in Jobs.for_pipeline(relay).unfinished()],
    }


def failures(relay: RelayLog) -> list[Failure]:
    """Return why tasks have stopped.

    What one wrote down that lost its role to another, which works on, is left out.
    """
    last = relay.last()
    landed_ms = last.landed_ms if last is not None else 0
    return [each for each in relay.failures.list() if each.what != LAND or each.made_ms > landed_ms]


def list_overrides(settings: Settings) -> list[dict[str, Any]]:
    """Return every override, ascending.

    ``used_ms``: Unix ms, None if no checkpoint has passed it.
    """
    overrides = settings.open_relay().overrides
    used = overrides.used_ms()
    return [
        override.to_json() | {"used_ms": used.get(override.named)} for override in overrides.list()
    ]


def pumps_with_captures(upstream: Upstream) -> list[dict[str, Any]]:
    """Return `registered_pumps`, each with its `capture`: None without one or without an answer."""
    pumps = registered_pumps(upstream)
    running = [
        pump
        for pump in pumps
        if pump["captured_cluster_id"] is not None and pump["state"] not in ("paused", "offline")
    ]
    asked = captures([pump["host"] for pump in running], upstream.tls())
    found = dict(zip([pump["node_id"] for pump in running], asked, strict=True))
    return [pump | {"capture": found.get(pump["node_id"])} for pump in pumps]


def registered_pumps(upstream: Upstream) -> list[dict[str, Any]]:
    """Return the registry's pumps.

    They have node_id, host, state, max_commit_ts, captured_cluster_id, captured_share. Raises
    EtcdError and RegistryError, after three seconds without an answer.
    """
    from sluice.tidb import EtcdClient, Registry

    with EtcdClient(upstream.pd_urls, tls=upstream.tls(), timeout_s=3.0) as etcd:
        pumps = Registry(etcd).pumps()
    return [
        {
            "node_id": pump.node_id,
            "host": pump.host,
            "state": pump.state,
            "max_commit_ts": pump.max_commit_ts,
            "captured_cluster_id": pump.captured_cluster_id,
            "captured_share": pump.captured_share,
        }
        for pump in pumps
    ]


def read_checkpoint_in_time(target: Target, cluster_id: int) -> Checkpoint | None:
    """Return the downstream's checkpoint, None if there is none.

    A downstream that doesn't answer within `_CONNECT_TIMEOUT_S` isn't waited for. Raises
    CheckpointError, DownstreamError and OSError.
    """
    if isinstance(target, Downstream):
        connect_s = min(_CONNECT_TIMEOUT_S, target.connect_timeout_s)
        target = replace(target, connect_timeout_s=connect_s, read_timeout_s=_CONNECT_TIMEOUT_S)
    return read_checkpoint(target, cluster_id)


def newest_checkpoint(target: Target, relay: RelayLog) -> Checkpoint | Exception | None:
    """Return the downstream's checkpoint; None if there is none; the error if it can't be read."""
    last = relay.last()
    if last is None:
        return None
    try:
        return read_checkpoint(target, last.cluster_id)
    except (CheckpointError, DownstreamError, OSError) as error:
        return error


@contextlib.contextmanager
def locked_checkpoint(target: Target, relay: RelayLog) -> Iterator[Checkpoint | Exception | None]:
    """Give what `newest_checkpoint` returns, and let no process commit until the block ends.

    With an error the checkpoint is unknown, and commits may come.
    """
    last = relay.last()
    with contextlib.ExitStack() as stack:
        found: Checkpoint | Exception | None = None
        try:
            if last is not None:
                found = stack.enter_context(hold_checkpoint(target, last.cluster_id))
        except (SluiceError, OSError) as error:
            found = error
        yield found


def now_ms() -> int:
    """Return the time of this machine's clock, Unix ms."""
    return time.time_ns() // 1_000_000
