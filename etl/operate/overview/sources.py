"""Poll every source of a pipeline's overview, side by side.

Each source's last answer outlives a poll.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.etl import operate
from sluice.etl.cached_value import PollResults, SourcePoller
from sluice.etl.downstream import Checkpoint
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.operate.overview.sizes import latest_sizes
from sluice.etl.settings import Settings
from sluice.etl.upstream_clock import upstream_cluster_id, upstream_skew_ms
from sluice.relay import RelayLog, StopMark, WindowRecord
from sluice.relay.measures import CounterStore
from sluice.relay.verification_log import Verifications

__all__ = ["KnownCheckpoint", "RelayEnds", "known_checkpoint", "poll_all"]

_RELAY_SOURCES = ("orders", "measures", "verified")
"""Sources that lie in the relay log: when that doesn't respond, it alone is named."""
_pollers: dict[tuple[str, ...], SourcePoller] = {}
"""The pollers, by pipeline."""


def poll_all(settings: Settings, patience_s: float) -> PollResults:
    """Return every source's answer, or its last one.

    They are ``relay`` (RelaySeen), ``upstream`` (the pumps), ``downstream`` (the checkpoint),
    ``orders``, ``measures``, ``verified``, ``archive`` (its sizes) and ``clock`` (ms).
    """
    parties = _poller_of(settings)
    answers = parties.poll(_questions(settings, parties, patience_s), patience_s)
    if "relay" in answers.errors:
        for name in _RELAY_SOURCES:
            answers.errors.pop(name, None)
    return answers


def _poller_of(settings: Settings) -> SourcePoller:
    place = (
        settings.upstream.pd_urls,
        settings.relay.url,
        settings.relay.pipeline,
        downstream_name(settings.target),
    )
    return _pollers.setdefault(place, SourcePoller())


@dataclass(frozen=True, slots=True)
class KnownCheckpoint:
    """The downstream's checkpoint, 0: none, None: unknown.

    `problem`: why it can't be asked now, then it is an older one, "" if it can.
    """

    at_ts: int | None
    problem: str = ""


def known_checkpoint(settings: Settings, patience_s: float) -> KnownCheckpoint:
    """Through where the downstream is complete, as far as that is known within `patience_s`."""
    parties = _poller_of(settings)
    questions = _questions(settings, parties, patience_s)
    answers = parties.poll({name: questions[name] for name in ("relay", "downstream")}, patience_s)
    at_ts = None
    if "downstream" in answers.values:
        checkpoint: Checkpoint | None = answers.values["downstream"]
        at_ts = checkpoint.commit_ts if checkpoint is not None else 0
    if "downstream" not in answers.unknown:
        return KnownCheckpoint(at_ts)
    error = answers.errors.get("relay") or answers.errors.get("downstream")
    return KnownCheckpoint(at_ts, error or "the downstream was asked and has not answered yet")


def _questions(
    settings: Settings, parties: SourcePoller, patience_s: float
) -> dict[str, Callable[[], Any]]:
    def relay() -> RelayLog:
        log: RelayLog = parties.latest("relay", patience_s).log
        return log

    def orders() -> dict[str, Any]:
        relay()
        return operate.orders(settings)

    def checkpoint() -> Checkpoint | None:
        last: WindowRecord | None = parties.latest("relay", patience_s).last
        cluster_id = last.cluster_id if last is not None else upstream_cluster_id(settings)
        return operate.read_checkpoint_in_time(settings.target, cluster_id) if cluster_id else None

    return {
        "relay": lambda: RelayEnds.load(settings),
        "upstream": lambda: operate.pumps_with_captures(settings.upstream),
        "downstream": checkpoint,
        "orders": orders,
        "measures": lambda: CounterStore(relay(), downstream_name(settings.target)).totals(),
        "verified": lambda: Verifications(relay()).last(),
        "archive": lambda: latest_sizes(settings),
        "clock": lambda: upstream_skew_ms(settings),
    }


@dataclass(frozen=True, slots=True)
class RelayEnds:
    """The relay log and its ends."""

    log: RelayLog
    first: WindowRecord | None
    last: WindowRecord | None
    stopped: StopMark | None

    @classmethod
    def load(cls, settings: Settings) -> RelayEnds:
        """Read the ends of the relay log. Raises relay errors, OSError."""
        log = settings.open_relay()
        return cls(log, log.first(), log.last(), log.stopped())
