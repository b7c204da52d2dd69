"""The pumps as a writer sees them: which exist, which take writes, and which is next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from sluice.tidb import pb
from sluice.tidb.etcd import NodeStatus, Registry
from sluice.tidb.rpc import TLS, open_channel

_MAX_PUMP_ERRORS = 10  # more than this in a row make a pump unavailable
_PROBE_TIMEOUT_S = 5.0


class PumpNode:
    """One pump. `available` is the client's own opinion, `status` the registry's."""

    def __init__(self, status: NodeStatus, tls: TLS | None) -> None:
        self.status = status
        self.available = status.state == "online"
        self.errors = 0
        self._tls = tls
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._write: Any = None

    @property
    def node_id(self) -> str:
        return self.status.node_id

    @property
    def online(self) -> bool:
        """Return whether the pump is online in the registry."""
        return self.status.state == "online"

    def write(self, request: bytes, timeout_s: float) -> Any:
        """Send a serialised WriteBinlogReq; returns grpc's future of a WriteBinlogResp."""
        with self._lock:
            if self._write is None:
                self._channel = open_channel(self.status.host, self._tls)
                self._write = self._channel.unary_unary(
                    "/binlog.Pump/WriteBinlog",
                    request_serializer=None,
                    response_deserializer=pb.pump.WriteBinlogResp.FromString,
                )
            return self._write.future(request, timeout=timeout_s)

    def move(self, status: NodeStatus) -> None:
        """Take over the registry's newest entry. A new host gets a new connection."""
        moved = status.host != self.status.host
        self.status = status
        if moved:
            self.close()

    def close(self) -> None:
        with self._lock:
            channel, self._channel, self._write = self._channel, None, None
        if channel is not None:
            channel.close()


class RangeSelector:
    """One after the other."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, start_ts: int, attempt: int, pumps: Sequence[PumpNode]) -> PumpNode:
        picked = pumps[self._turn % len(pumps)]
        self._turn += 1
        return picked


class HashSelector:
    """Select by start_ts, so that all writers send a transaction to the same pump.

    A repeat goes to the next.
    """

    def pick(self, start_ts: int, attempt: int, pumps: Sequence[PumpNode]) -> PumpNode:
        return pumps[(start_ts + attempt) % len(pumps)]


class ScoreSelector:
    """Select in proportion to the registry's scores, evenly interleaved.

    Without any score, and on repeats: one after the other.

    A pump with score 0 gets nothing while another has a score.
    """

    def __init__(self) -> None:
        self._range = RangeSelector()
        self._credit: dict[str, int] = {}

    def pick(self, start_ts: int, attempt: int, pumps: Sequence[PumpNode]) -> PumpNode:
        scored = [pump for pump in pumps if pump.status.score > 0]
        if not scored or attempt:
            return self._range.pick(start_ts, attempt, pumps)
        for pump in scored:
            self._credit[pump.node_id] = self._credit.get(pump.node_id, 0) + pump.status.score
        best = max(scored, key=lambda pump: self._credit[pump.node_id])
        self._credit[best.node_id] -= sum(pump.status.score for pump in scored)
        return best


SELECTORS: dict[str, Callable[[], RangeSelector | HashSelector | ScoreSelector]] = {
    "range": RangeSelector,
    "hash": HashSelector,
    "score": ScoreSelector,
}


class PumpPool:
    """Thread-safe.

    Follows the registry, counts errors, and probes pumps that failed until they answer again.

    ValueError for an unknown strategy, EtcdError and RegistryError if the registry can't be read at
    the start.
    """

    def __init__(
        self,
        registry: Registry,
        cluster_id: int,
        strategy: str,
        check_interval_s: float,
        tls: TLS | None,
    ) -> None:
        if strategy not in SELECTORS:
            raise ValueError(f"unknown strategy {strategy!r}; it is one of {', '.join(SELECTORS)}")
        self._probe = pb.pump.WriteBinlogReq(clusterID=cluster_id).SerializeToString()
        self._tls = tls
        self._selector = SELECTORS[strategy]()
        self._check_interval_s = check_interval_s
        self._lock = threading.Lock()
        self._nodes: dict[str, PumpNode] = {}
        self._available: list[PumpNode] = []
        self._closed = threading.Event()
        self._apply({status.node_id: status for status in registry.pumps()})
        self._watch = registry.watch_pumps()
        self._threads = [
            threading.Thread(target=self._follow, name="pump-registry", daemon=True),
            threading.Thread(target=self._check, name="pump-check", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def pick(self, start_ts: int, attempt: int) -> PumpNode | None:
        """Return the pump for a Prewrite, None if none is available."""
        with self._lock:
            return (
                self._selector.pick(start_ts, attempt, self._available) if self._available else None
            )

    def online(self) -> list[PumpNode]:
        """Return all pumps that are online in the registry, the unavailable among them."""
        with self._lock:
            return [node for node in self._nodes.values() if node.online]

    def available(self) -> list[str]:
        """Return node ids of the pumps that get Prewrites."""
        with self._lock:
            return [node.node_id for node in self._available]

    def size(self) -> int:
        """Return how many pumps the registry knows, in whatever state."""
        with self._lock:
            return len(self._nodes)

    def succeeded(self, node: PumpNode) -> None:
        """Record that a write went through."""
        if node.errors or not node.available:
            with self._lock:
                node.errors = 0
                node.available = node.online
                self._rebuild()

    def failed(self, node: PumpNode) -> None:
        """Record that a write failed through the pump's fault."""
        with self._lock:
            node.errors += 1
            if node.errors > _MAX_PUMP_ERRORS and node.available:
                node.errors = 0
                node.available = False
                self._rebuild()

    def close(self) -> None:
        self._closed.set()
        self._watch.close()
        with self._lock:
            nodes = list(self._nodes.values())
        for node in nodes:
            node.close()
        for thread in self._threads:
            thread.join(timeout=2)

    def _rebuild(self) -> None:
        self._available = sorted(
            (node for node in self._nodes.values() if node.available), key=lambda node: node.node_id
        )

    def _apply(self, statuses: dict[str, NodeStatus]) -> None:
        with self._lock:
            for node_id, status in statuses.items():
                node = self._nodes.get(node_id)
                if node is None:
                    self._nodes[node_id] = PumpNode(status, self._tls)
                    continue
                was_online, moved = node.online, node.status.host != status.host
                node.move(status)
                if not node.online:
                    node.available = False
                elif not was_online or moved:
                    node.available, node.errors = True, 0
            gone = [node for node_id, node in self._nodes.items() if node_id not in statuses]
            for node in gone:
                del self._nodes[node.node_id]
            self._rebuild()
        for node in gone:
            node.close()

    def _follow(self) -> None:
        for statuses in self._watch:
            self._apply(statuses)

    def _check(self) -> None:
        while not self._closed.wait(self._check_interval_s):
            for node in self.online():
                if node.available or self._closed.is_set():
                    continue
                try:
                    answer = node.write(self._probe, _PROBE_TIMEOUT_S).result()
                except (grpc.RpcError, grpc.FutureCancelledError, ValueError):
                    continue
                if not answer.errmsg:
                    self.succeeded(node)
