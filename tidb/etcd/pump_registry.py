"""The registry of pumps and drainers: JSON values in etcd under `/tidb-binlog/v1`.

`/tidb-binlog/v1/pumps/<node id>` and `/tidb-binlog/v1/drainers/<node id>`, without lease, so
entries stay until they are changed:

    {"nodeId": "host:8250", "host": "10.0.0.1:8250", "state": "online", "isAlive": false,
     "score": 0, "label": null | {"labels": {"zone": "a"}}, "maxCommitTS": 1, "updateTS": 1}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.tidb.etcd.client import EtcdClient, EtcdWatch, KeyValue

PREFIX = "/tidb-binlog/v1"
DRAINED_LABEL = "sluice-drained-through"
"""The label of a pump that went offline by itself: every drainer has read it through this TSO,
which is all it held.
"""
CAPTURED_LABEL = "sluice-captures-cluster"
"""The label of a pump that captures from TiKV: the id of the cluster.

It holds everything that the cluster committed behind its begin, in its share of the tables. Pumps
with the same label and share are replicas of each other.
"""
SHARE_LABEL = "sluice-captures-share"
"""The label of a pump that captures a share of the tables, such as 2/3. Without it: all tables."""
STATES = ("online", "pausing", "paused", "closing", "offline")


class RegistryError(SluiceError):
    """A registry entry that can't be read or written. The message names its key."""

    transient = True
    hint = "correct or remove the entry that it names"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A pump or drainer as the registry shows it.

    `host` is "ip:port". `state` is one of STATES. `max_commit_ts`: of a pump the greatest commit
    TSO it has sorted, of a drainer the commit TSO through which it is done. `update_ts`: a TSO of
    about the last heartbeat.
    """

    node_id: str
    host: str
    state: str = "online"
    is_alive: bool = False
    score: int = 0
    label: Mapping[str, str] | None = None
    max_commit_ts: int = 0
    update_ts: int = 0

    @property
    def drained_ts(self) -> int | None:
        """Return the TSO of DRAINED_LABEL; None without that label."""
        text = (self.label or {}).get(DRAINED_LABEL, "")
        return int(text) if text.isdecimal() else None

    @property
    def captured_cluster_id(self) -> int | None:
        """Return the id of CAPTURED_LABEL; None for a pump that takes binlogs."""
        text = (self.label or {}).get(CAPTURED_LABEL, "")
        return int(text) if text.isdecimal() else None

    @property
    def captured_share(self) -> str:
        """Return the share of SHARE_LABEL; "" for a pump that captures all tables, or none."""
        return (self.label or {}).get(SHARE_LABEL, "")

    def is_replica_of(self, other: NodeStatus) -> bool:
        """Return whether both capture the same share of one cluster."""
        return (
            self.captured_cluster_id is not None
            and self.captured_cluster_id == other.captured_cluster_id
            and self.captured_share == other.captured_share
        )

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object with the original's names, in the original's order."""
        return {
            "nodeId": self.node_id,
            "host": self.host,
            "state": self.state,
            "isAlive": self.is_alive,
            "score": self.score,
            "label": None if self.label is None else {"labels": dict(self.label)},
            "maxCommitTS": self.max_commit_ts,
            "updateTS": self.update_ts,
        }

    def to_json(self) -> bytes:
        """Return the value as it lies in etcd. ValueError if `state` is none of STATES."""
        if self.state not in STATES:
            raise ValueError(
                f"unknown state {self.state!r} of a pump or drainer: expected one of"
                f" {', '.join(STATES)}"
            )
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, value: bytes, key: str = "") -> NodeStatus:
        """Parse a value. RegistryError, naming `key`, if it isn't such an object."""
        try:
            found = json.loads(value)
            label = found.get("label")
            status = cls(
                node_id=_text(found, "nodeId"),
                host=_text(found, "host"),
                state=_text(found, "state"),
                is_alive=bool(found.get("isAlive", False)),
                score=int(found.get("score") or 0),
                label=(
                    None
                    if label is None
                    else {str(k): str(v) for k, v in (label.get("labels") or {}).items()}
                ),
                max_commit_ts=int(found.get("maxCommitTS") or 0),
                update_ts=int(found.get("updateTS") or 0),
            )
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise RegistryError(
                f"the registry entry {key} can't be read ({error}): {value[:200]!r}"
            ) from error
        if status.state not in STATES:
            raise RegistryError(f"the registry entry {key} has the unknown state {status.state!r}")
        return status


class Registry:
    """Thread-safe.

    Raises RegistryError for entries that can't be read and EtcdError when etcd can't be reached.
    """

    def __init__(self, etcd: EtcdClient, prefix: str = PREFIX) -> None:
        self._etcd = etcd
        self._prefix = prefix.rstrip("/")
        self._known: dict[str, dict[KeyValue, NodeStatus]] = {}
        """The last listing of each kind, which is mostly the same again."""

    def pumps(self) -> list[NodeStatus]:
        """Return all pumps, in every state, by node id."""
        return self._list("pumps")

    def drainers(self) -> list[NodeStatus]:
        """Return all drainers, in every state, by node id."""
        return self._list("drainers")

    def get_pump(self, node_id: str) -> NodeStatus | None:
        """Return one pump, None if it never registered."""
        return self._get("pumps", node_id)

    def register_pump(self, status: NodeStatus) -> bool:
        """Write a pump's entry, new or not. True if it is new."""
        return self._put("pumps", status)

    update_pump = register_pump

    def update_drainer(self, status: NodeStatus) -> bool:
        """Write a drainer's entry, new or not. True if it is new."""
        return self._put("drainers", status)

    def remove_pump(self, node_id: str) -> bool:
        """Delete a pump's entry; False if there is none."""
        return self._etcd.delete(f"{self._prefix}/pumps/{node_id}")

    def remove_drainer(self, node_id: str) -> bool:
        """Delete a drainer's entry; False if there is none."""
        return self._etcd.delete(f"{self._prefix}/drainers/{node_id}")

    def watch_pumps(self) -> NodeWatch:
        """Follow the pumps.

        The iterator of {node id: NodeStatus} gives them as they are, and again after every change.
        """
        folder = f"{self._prefix}/pumps/"
        return NodeWatch(folder, self._etcd.watch_prefix(folder))

    def _list(self, kind: str) -> list[NodeStatus]:
        items, known = (
            self._etcd.range_prefix(f"{self._prefix}/{kind}/").items,
            self._known.get(kind, {}),
        )
        found = self._known[kind] = {item: known.get(item) or _read(item) for item in items}
        return sorted(found.values(), key=lambda status: status.node_id)

    def _get(self, kind: str, node_id: str) -> NodeStatus | None:
        item = self._etcd.get(f"{self._prefix}/{kind}/{node_id}")
        return None if item is None else _read(item)

    def _put(self, kind: str, status: NodeStatus) -> bool:
        if not status.node_id or "/" in status.node_id:
            raise RegistryError(
                f"{status.node_id!r} can't be a node id: it is empty or has a slash"
            )
        key, value = f"{self._prefix}/{kind}/{status.node_id}", status.to_json()
        for _ in range(3):  # another process may create or delete it in between
            if self._etcd.update(key, value):
                return False
            if self._etcd.create(key, value):
                return True
        raise RegistryError(f"the registry entry {key} is being created and deleted by others")


class NodeWatch:
    """The iterator behind Registry.watch_pumps.

    An entry that can't be read keeps its last readable state.
    """

    def __init__(self, folder: str, watch: EtcdWatch) -> None:
        self._folder = folder
        self._watch = watch
        self._nodes: dict[str, NodeStatus] = {}

    def __iter__(self) -> Iterator[dict[str, NodeStatus]]:
        for batch in self._watch:
            before, self._nodes = self._nodes, {} if batch.resync else dict(self._nodes)
            for event in batch.events:
                node_id = event.item.key[len(self._folder) :]
                if event.deleted:
                    self._nodes.pop(node_id, None)
                    continue
                try:
                    self._nodes[node_id] = _read(event.item)
                except RegistryError:
                    if node_id in before:
                        self._nodes[node_id] = before[node_id]
            yield dict(self._nodes)

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._watch.close()


def _read(item: KeyValue) -> NodeStatus:
    return NodeStatus.from_json(item.value, item.key)


def _text(found: dict[str, object], name: str) -> str:
    value = found[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a text")
    return value
