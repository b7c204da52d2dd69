"""List what holds replication back: a sentence each, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.etl.display_units import counted, format_duration
from sluice.etl.operate.overview.model import (
    LATE_LAG_MS,
    PAUSED,
    UNKNOWN,
    WAITING,
    WORKING,
    Overview,
)
from sluice.tidb import tso
from sluice.tidb.table_name import abbreviate
from sluice.tidb.table_shares import Share, missing_shares

__all__ = ["blockers"]

_MIN_SILENCE_MS = 5_000
_MAX_TABLES_SHOWN = 3


def blockers(seen: Overview, orders: Mapping[str, Any]) -> Iterator[str]:
    """Yield what holds replication back, a sentence each.

    `orders`: what operators asked for, in the form of `sluice.etl.operate.orders`.
    """
    yield from _stopped_blockers(seen, orders)
    yield from _unresponsive_blockers(seen)
    yield from _ordered_pauses(orders)
    yield from _pump_blockers(seen)
    yield from _lag_blockers(seen)
    if seen.verified.differences:
        yield (
            f"{counted(seen.verified.differences, 'row')} of"
            f" {abbreviate(seen.verified.differing, _MAX_TABLES_SHOWN, kind='tables')} differ"
            " from the upstream; `sluice verify` shows which"
        )


def _stopped_blockers(seen: Overview, orders: Mapping[str, Any]) -> Iterator[str]:
    if orders.get("stopped"):
        yield f"applying has stopped: {orders['stopped']}"
    for failure in seen.failures:
        yield _with_hint(f"{failure['what']} has stopped: {failure['message']}", failure["hint"])
    if seen.downstream.refused:
        why = seen.downstream.refused.partition(" Hint: ")[0]  # the hint below is the one for it
        yield _with_hint(
            f"the downstream refused changes: {why[:300]}{'…' * (len(why) > 300)}",
            f"`sluice accept {seen.downstream.refusal}` or `sluice txn skip`",
        )


def _with_hint(text: str, hint: str) -> str:
    """Return the sentence with its hint, which an error's own text may end with."""
    return text if text.endswith(hint) else f"{text.rstrip('.')}. Hint: {hint}"


def _unresponsive_blockers(seen: Overview) -> Iterator[str]:
    who = {
        "upstream": "the upstream's PD",
        "relay": "the relay log",
        "downstream": "the downstream",
    }
    for name, error in seen.errors.items():
        if name in who:
            yield f"{who[name]} doesn't answer{_since(seen, name)}: {error}"


def _since(seen: Overview, name: str) -> str:
    """Return since when a source is silent, if for long, and how old what is shown of it is."""
    since_ms, as_of_ms = seen.silent_ms.get(name, seen.at_ms), seen.as_of_ms.get(name)
    if seen.at_ms - since_ms < _MIN_SILENCE_MS:
        return ""
    shown = f", and what is shown of it is {_span(seen.at_ms - as_of_ms)} old" if as_of_ms else ""
    return f" since {tso.time_text(tso.compose(since_ms))}{shown}"


def _ordered_pauses(orders: Mapping[str, Any]) -> Iterator[str]:
    paused = [
        word
        for word, key in (("landing", "land_paused"), ("applying", "apply_paused"))
        if orders.get(key)
    ]
    if paused:
        yield (
            f"{' and '.join(paused)} {'is' if len(paused) == 1 else 'are'} paused; `sluice resume`"
            " goes on"
        )
    if orders.get("apply_until_ts") is not None:
        yield (
            f"applying goes to {tso.text(orders['apply_until_ts'])} and waits there; `sluice"
            " resume` goes on"
        )


def _pump_blockers(seen: Overview) -> Iterator[str]:
    replicated = {pump.share for pump in seen.pumps if pump.is_captured and pump.state == WORKING}
    for pump in seen.pumps:
        if pump.is_captured and pump.share in replicated:
            continue  # landing reads another one
        if pump.state == PAUSED:
            yield (
                f"pump {pump.node_id} ({pump.host}) is paused: nothing after"
                f" {tso.text(pump.max_commit_ts)} can be landed until it is started again"
            )
        elif pump.state == WAITING:
            yield (
                f"pump {pump.node_id} ({pump.host}, {pump.registry_state}) is"
                f" {_span(pump.lag_ms)} behind: nothing after"
                f" {tso.text(pump.max_commit_ts)} can be landed"
                + "".join(f"; it {line}" for line in pump.capture[:1])
                + "".join(f"; {line}" for line in pump.capture[1:])
            )
    present = [
        Share.parse(pump.share) if pump.share else Share()
        for pump in seen.pumps
        if pump.is_captured and pump.registry_state != "offline"
    ]
    for share in missing_shares(present):
        yield (
            f"share {share} of the tables has no pump: nothing more can be landed until one"
            f' captures it (`share = "{share}"` in [capture])'
        )
    if not seen.pumps and "upstream" in seen.as_of_ms:
        yield "no pump is registered: TiDB has nowhere to send what it commits"


def _lag_blockers(seen: Overview) -> Iterator[str]:
    landing, downstream = seen.landing, seen.downstream
    if landing.state == WAITING and landing.lag_ms is not None:
        yield (
            f"landing is {_span(landing.lag_ms)} behind; its task's log has what it waits"
            " for, or no task runs (is the DAG `replicate` paused?)"
        )
    if downstream.state not in (WAITING, UNKNOWN) or downstream.lag_ms is None:
        return
    if downstream.state == UNKNOWN and downstream.lag_ms <= LATE_LAG_MS:
        return
    waiting_ms = seen.relay.waiting_ms or 0.0
    if downstream.ddl_under_way:
        yield (
            f"the downstream executes the DDL of commit_ts {downstream.ddl_under_way}; what follows"
            " waits for it"
        )
    elif landing.state != WAITING or waiting_ms > downstream.lag_ms / 2:
        yield (
            f"applying is {_span(downstream.lag_ms)} behind, {_span(waiting_ms)} of"
            " it landed and not applied; its task's log has what it waits for, or no task runs"
            " (is the DAG `replicate` paused?)"
        )


def _span(milliseconds: float) -> str:
    return format_duration(milliseconds / 1000)
