"""What holds replication back, in words: a sentence each, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etl.overview.parts import LATE_MS, PAUSED, UNKNOWN, WAITS, Overview
from upstream import tso

__all__ = ["held_back"]

_WHILE_MS = 5_000


def held_back(seen: Overview, orders: Mapping[str, Any]) -> Iterator[str]:
    """The sentences. `orders`: what operators asked for, as `etl.operate.orders` tells it."""
    yield from _stopped(seen, orders)
    yield from _silent(seen)
    yield from _asked_for(orders)
    yield from _pumps(seen)
    yield from _late(seen)
    if seen.verified.differences:
        yield (
            f"{seen.verified.differences:,} rows of {_some(seen.verified.differing)} differ from the upstream;"
            " `sluice verify` shows which"
        )


def _stopped(seen: Overview, orders: Mapping[str, Any]) -> Iterator[str]:
    if orders.get("stopped"):
        yield f"applying has stopped: {orders['stopped']}"
    for failure in seen.failures:
        yield f"{failure['what']} has stopped: {failure['said']}. Way out: {failure['way_out']}"
    if seen.downstream.refused:
        yield (
            f"the downstream refused changes: {seen.downstream.refused[:300]}. Way out: `sluice accept"
            f" {seen.downstream.refusal}` or `sluice txn skip`"
        )


def _silent(seen: Overview) -> Iterator[str]:
    who = {"upstream": "the upstream's PD", "relay": "the relay log", "downstream": "the downstream"}
    for name, said in seen.errors.items():
        if name in who:
            yield f"{who[name]} doesn't answer{_since(seen, name)}: {said}"


def _since(seen: Overview, name: str) -> str:
    """Since when, if that is a while ago, and how old what is shown of it is."""
    since_ms, as_of_ms = seen.silent_ms.get(name, seen.at_ms), seen.as_of_ms.get(name)
    if seen.at_ms - since_ms < _WHILE_MS:
        return ""
    shown = f", and what is shown of it is {_s(seen.at_ms - as_of_ms)} old" if as_of_ms else ""
    return f" since {tso.time_text(tso.compose(since_ms))}{shown}"


def _asked_for(orders: Mapping[str, Any]) -> Iterator[str]:
    paused = [word for word, key in (("landing", "land_paused"), ("applying", "apply_paused")) if orders.get(key)]
    if paused:
        yield f"{' and '.join(paused)} {'is' if len(paused) == 1 else 'are'} paused; `sluice resume` goes on"
    if orders.get("apply_until_ts") is not None:
        yield f"applying goes to {tso.text(orders['apply_until_ts'])} and waits there; `sluice resume` goes on"


def _pumps(seen: Overview) -> Iterator[str]:
    for pump in seen.pumps:
        if pump.state == PAUSED:
            yield (
                f"pump {pump.node_id} ({pump.host}) is paused: nothing after {tso.text(pump.max_commit_ts)} can be"
                " landed until it is started again"
            )
        elif pump.state == WAITS:
            yield (
                f"pump {pump.node_id} ({pump.host}, {pump.registry_state}) is {_s(pump.lag_ms)} behind: nothing after"
                f" {tso.text(pump.max_commit_ts)} can be landed"
            )
    if not seen.pumps and "upstream" in seen.as_of_ms:
        yield "no pump is registered: TiDB has nowhere to send what it commits"


def _late(seen: Overview) -> Iterator[str]:
    landing, downstream = seen.landing, seen.downstream
    if landing.state == WAITS and landing.lag_ms is not None:
        yield (
            f"landing is {_s(landing.lag_ms)} behind; its task's log says what it waits for, or no task runs (is the"
            " DAG `replicate` paused?)"
        )
    if downstream.state not in (WAITS, UNKNOWN) or downstream.lag_ms is None:
        return
    if downstream.state == UNKNOWN and downstream.lag_ms <= LATE_MS:
        return
    waiting_ms = seen.relay.waiting_ms or 0.0
    if downstream.ddl_under_way:
        yield f"the downstream executes the DDL of commit_ts {downstream.ddl_under_way}; what follows waits for it"
    elif landing.state != WAITS or waiting_ms > downstream.lag_ms / 2:
        yield (
            f"applying is {_s(downstream.lag_ms)} behind, {_s(waiting_ms)} of it landed and not applied; its task's log"
            " says what it waits for, or no task runs (is the DAG `replicate` paused?)"
        )


def _s(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.0f} s"


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more tables" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
