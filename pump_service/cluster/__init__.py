"""The pump as a member of the cluster: its entry, its heartbeat, the time, and who knows how a transaction ended."""

from pump_service.cluster.clock import Clock, TimeLimit
from pump_service.cluster.heartbeat import Heartbeat
from pump_service.cluster.node import (
    CLOSING,
    OFFLINE,
    ONLINE,
    PAUSED,
    PAUSING,
    Membership,
    Node,
    NodeError,
    check_cluster,
    node_id,
)
from pump_service.cluster.origins import Origin, Origins
from pump_service.cluster.resolver import TiKVResolver
from pump_service.cluster.versions import KeptVersions

__all__ = [
    "CLOSING",
    "OFFLINE",
    "ONLINE",
    "PAUSED",
    "PAUSING",
    "Clock",
    "Heartbeat",
    "KeptVersions",
    "Membership",
    "Node",
    "NodeError",
    "Origin",
    "Origins",
    "TiKVResolver",
    "TimeLimit",
    "check_cluster",
    "node_id",
]
