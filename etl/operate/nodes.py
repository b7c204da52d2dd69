"""Pumps and drainers in the registry: which there are, and how one leaves for a while or for good.

A process that runs is asked by HTTP, as TiDB's tools ask it, and writes its own state. The
registry's entry is written here only for a process that is gone, which is checked: it neither
answers nor moves its heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote

from sluice.etl.downstream.ownership import OWNER_LABEL
from sluice.etl.operate.commands import OperateError
from sluice.etl.operate.node_http import ask_node
from sluice.etl.settings import Settings
from sluice.relay.audit import AuditLog
from sluice.tidb import TLS, EtcdClient, NodeStatus, Registry, tso

__all__ = ["DRAINERS", "OFFLINE", "PAUSE", "PUMPS", "forget", "leave", "list_nodes"]

PUMPS, DRAINERS = "pumps", "drainers"
PAUSE, OFFLINE = "pause", "offline"
_ACTIONS = {PAUSE: ("pause", "paused"), OFFLINE: ("close", "offline")}
"""The name of the action in HTTP, and the state that it ends in."""
_ANSWER_TIMEOUT_S, _HEARTBEAT_TIMEOUT_S = 5.0, 3.0
_ETCD_TIMEOUT_S = 10.0


def list_nodes(settings: Settings, kind: str) -> list[NodeStatus]:
    """Return the registry's pumps or drainers, by node id. Raises EtcdError, RegistryError."""
    with _registry(settings) as registry:
        return registry.pumps() if kind == PUMPS else registry.drainers()


def leave(
    settings: Settings, kind: str, node_id: str, action: str, *, is_gone: bool = False
) -> str:
    """Order a pump or drainer to leave: PAUSE expects it back, OFFLINE is for good.

    `is_gone`: its process doesn't exist.

    Raises OperateError, EtcdError, RegistryError.
    """
    with _registry(settings) as registry:
        node = _find(registry, kind, node_id)
        verb, state = _ACTIONS[action]
        if node.state == state:
            return f"{_kind_text(kind)} {node_id!r} is {state} already"
        is_pipeline = OWNER_LABEL in (node.label or {})
        if is_pipeline and action == PAUSE:
            raise OperateError(
                f"drainer {node_id!r} is a pipeline of Sluice's, which takes no orders here:"
                " `sluice pause`"
            )
        if not is_pipeline and not is_gone:
            _send_request(node, kind, verb, settings.upstream.tls())
            asked = f"{_kind_text(kind)} {node_id!r} at {node.host} was asked to"
            if action == PAUSE:
                return f"{asked} pause"
            return f"{asked} go offline; it goes offline once every drainer has read what it holds"
        _check_process_gone(registry, kind, node, settings.upstream.tls(), is_pipeline=is_pipeline)
        entry = replace(node, state=state)
        if kind == PUMPS:
            registry.update_pump(entry)
        else:
            registry.update_drainer(entry)
    text = f"{_kind_text(kind)} {node_id!r} is {state} in the registry"
    if (kind, action) == (PUMPS, OFFLINE) and node.captured_cluster_id is not None:
        text += "; landing reads another pump that captures the cluster, and waits without one"
    elif (kind, action) == (PUMPS, OFFLINE):
        text += (
            "; where binlogs of it were not landed, landing stops and names them: `sluice pumps"
            f" forget {node_id}` accepts their loss"
        )
    return text


def forget(settings: Settings, kind: str, node_id: str, by: str = "") -> str:
    """Remove an entry that is offline.

    A pump may be missing in the registry, too: what of it was not landed is given up. Raises
    OperateError, EtcdError, RegistryError, relay errors.
    """
    with _registry(settings) as registry:
        there = {
            node.node_id: node
            for node in (registry.pumps() if kind == PUMPS else registry.drainers())
        }
        node = there.get(node_id)
        if node is not None and node.state != "offline":
            raise OperateError(
                f"{_kind_text(kind)} {node_id!r} is {node.state}; first take it offline: `sluice"
                f" {kind} offline {node_id}`"
            )
        if kind == DRAINERS:
            if node is None:
                raise _unknown(kind, node_id, there)
            registry.remove_drainer(node_id)
            return f"drainer {node_id!r} is removed from the registry"
        relay = settings.open_relay()
        if node is None and node_id not in relay.known_pumps.load().pumps:
            raise _unknown(kind, node_id, there)
        audit = AuditLog(relay.place)
        entry = audit.begin(by, "forget-pump", node_id)
        relay.known_pumps.forget(node_id)
        if node is not None:
            registry.remove_pump(node_id)
        last = relay.last()
        landed = f" after {tso.text(last.hi)}" if last is not None else ""
        message = (
            f"pump {node_id!r} is forgotten: what it held{landed} and was never landed is given up"
        )
        if node is not None and node.captured_cluster_id is not None and _has_replica(node, there):
            message = f"pump {node_id!r} is forgotten: landing reads another one that captures"
        audit.end(entry, message)
    return (
        f"{message}. `sluice resume` lets landing go on, `sluice verify` finds rows that are"
        " missing"
    )


def _has_replica(node: NodeStatus, there: dict[str, NodeStatus]) -> bool:
    return any(
        other.is_replica_of(node) and other.state != "offline"
        for other in there.values()
        if other.node_id != node.node_id
    )


@contextmanager
def _registry(settings: Settings) -> Iterator[Registry]:
    with EtcdClient(
        settings.upstream.pd_urls, tls=settings.upstream.tls(), timeout_s=_ETCD_TIMEOUT_S
    ) as etcd:
        yield Registry(etcd)


def _find(registry: Registry, kind: str, node_id: str) -> NodeStatus:
    there = {
        node.node_id: node for node in (registry.pumps() if kind == PUMPS else registry.drainers())
    }
    if node_id not in there:
        raise _unknown(kind, node_id, there)
    return there[node_id]


def _unknown(kind: str, node_id: str, there: dict[str, NodeStatus]) -> OperateError:
    known = ", ".join(map(repr, there)) or "none"
    return OperateError(f"the registry has no {_kind_text(kind)} {node_id!r}; there are: {known}")


def _kind_text(kind: str) -> str:
    return kind.removesuffix("s")


def _send_request(node: NodeStatus, kind: str, verb: str, tls: TLS | None) -> None:
    """Ask the process for a state. Raises OperateError if it doesn't answer, or refuses."""
    try:
        path = f"/state/{quote(node.node_id, safe='')}/{verb}"
        answer = ask_node(node.host, "PUT", path, tls, _ANSWER_TIMEOUT_S)
    except (OSError, ValueError) as error:
        raise OperateError(
            f"{_kind_text(kind)} {node.node_id!r} doesn't answer at {node.host} ({error}); if its"
            f" process is gone: `sluice {kind} {'pause' if verb == 'pause' else 'offline'}"
            f" {node.node_id} --gone`"
        ) from None
    if answer is None or answer.get("code") != 200:
        message = answer.get("message") if answer else "it has no such page"
        raise OperateError(f"{_kind_text(kind)} {node.node_id!r} at {node.host} refuses: {message}")


def _check_process_gone(
    registry: Registry, kind: str, node: NodeStatus, tls: TLS | None, *, is_pipeline: bool
) -> None:
    """Raise OperateError if the process lives: it answers for itself, or its entry moves."""
    if not is_pipeline and answers(node, tls):
        raise OperateError(
            f"{_kind_text(kind)} {node.node_id!r} answers at {node.host}: leave out --gone, it is"
            " asked then"
        )
    time.sleep(_HEARTBEAT_TIMEOUT_S)
    now = _find(registry, kind, node.node_id)
    if (now.update_ts, now.state) != (node.update_ts, node.state):
        ends = (
            "end its tasks first: pause the DAG `replicate` in Airflow"
            if is_pipeline
            else "stop it first"
        )
        raise OperateError(
            f"{_kind_text(kind)} {node.node_id!r} is running: its registry entry has just"
            f" changed; {ends}"
        )


def answers(node: NodeStatus, tls: TLS | None) -> bool:
    """Return whether the process of a registry entry answers at its address, for itself."""
    try:
        status = ask_node(node.host, "GET", "/status", tls, _ANSWER_TIMEOUT_S)
    except (OSError, ValueError):
        return False
    if status is None:
        return False  # another server has that address now: pumps and drainers have the page
    pumps = status.get("status")
    return not isinstance(pumps, dict) or node.node_id in pumps
