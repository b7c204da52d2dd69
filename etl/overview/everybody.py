"""Everybody who has to do with a pipeline, asked side by side; what each said last outlives a look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etl import operate
from etl.asking import Answers, Parties
from etl.downstream import Checkpoint
from etl.overview.clock import upstream_ahead_ms, upstream_cluster_id
from etl.overview.sizes import newest_sizes
from etl.ownership import downstream_name
from etl.settings import Settings
from relay import RelayLog, Stop, Window
from relay.measures import Measures
from relay.verified import Verifications

__all__ = ["KnownCheckpoint", "RelaySeen", "ask_all", "known_checkpoint"]

_IN_THE_RELAY = ("orders", "measures", "verified")
"""Who is asked for what lies in the relay log: when that doesn't answer, it alone is named."""
_known: dict[tuple[str, ...], Parties] = {}
"""By pipeline."""


def ask_all(settings: Settings, patience_s: float) -> Answers:
    """What everybody says now, or said last: ``relay`` (RelaySeen), ``upstream`` (the pumps), ``downstream`` (the
    checkpoint), ``orders``, ``measures``, ``verified``, ``archive`` (its sizes) and ``clock`` (ms).
    """
    parties = _parties_of(settings)
    answers = parties.ask(_questions(settings, parties, patience_s), patience_s)
    if "relay" in answers.errors:
        for name in _IN_THE_RELAY:
            answers.errors.pop(name, None)
    return answers


def _parties_of(settings: Settings) -> Parties:
    place = (settings.upstream.pd_urls, settings.relay.url, settings.relay.pipeline, downstream_name(settings.target))
    return _known.setdefault(place, Parties())


@dataclass(frozen=True, slots=True)
class KnownCheckpoint:
    """The downstream's checkpoint, 0: none, None: unknown. `problem`: why it can't be asked now, then it is an older
    one, "" if it can.
    """

    at_ts: int | None
    problem: str = ""


def known_checkpoint(settings: Settings, patience_s: float) -> KnownCheckpoint:
    """Through where the downstream is complete, as far as that is known within `patience_s`."""
    parties = _parties_of(settings)
    questions = _questions(settings, parties, patience_s)
    answers = parties.ask({name: questions[name] for name in ("relay", "downstream")}, patience_s)
    at_ts = None
    if "downstream" in answers.said:
        checkpoint: Checkpoint | None = answers.said["downstream"]
        at_ts = checkpoint.commit_ts if checkpoint is not None else 0
    if "downstream" not in answers.missing:
        return KnownCheckpoint(at_ts)
    said = answers.errors.get("relay") or answers.errors.get("downstream")
    return KnownCheckpoint(at_ts, said or "the downstream was asked and has not answered yet")


def _questions(settings: Settings, parties: Parties, patience_s: float) -> dict[str, Callable[[], Any]]:
    def relay() -> RelayLog:
        log: RelayLog = parties.said_by("relay", patience_s).log
        return log

    def orders() -> dict[str, Any]:
        relay()
        return operate.orders(settings)

    def checkpoint() -> Checkpoint | None:
        last: Window | None = parties.said_by("relay", patience_s).last
        cluster_id = last.cluster_id if last is not None else upstream_cluster_id(settings)
        return operate.checkpoint_soon(settings.target, cluster_id) if cluster_id else None

    return {
        "relay": lambda: RelaySeen.of(settings),
        "upstream": lambda: operate.registered_pumps(settings.upstream),
        "downstream": checkpoint,
        "orders": orders,
        "measures": lambda: Measures(relay(), downstream_name(settings.target)).totals(),
        "verified": lambda: Verifications(relay()).last(),
        "archive": lambda: newest_sizes(settings),
        "clock": lambda: upstream_ahead_ms(settings),
    }


@dataclass(frozen=True, slots=True)
class RelaySeen:
    """The relay log and its ends."""

    log: RelayLog
    first: Window | None
    last: Window | None
    stopped: Stop | None

    @classmethod
    def of(cls, settings: Settings) -> RelaySeen:
        log = settings.open_relay()
        return cls(log, log.first(), log.last(), log.stopped())
