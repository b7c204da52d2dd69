"""Represent the pump in the cluster: entry, heartbeat, PD's clock, transaction outcomes."""

from sluice.pump_service.cluster.client_liveness import ClientConnection, ClientLiveness
from sluice.pump_service.cluster.clock import FutureTsLimit, PdClock
from sluice.pump_service.cluster.gc_safepoint import HistoryLostError, ServiceSafePoint
from sluice.pump_service.cluster.heartbeat import Heartbeat
from sluice.pump_service.cluster.missing_commits import TiKVResolver
from sluice.pump_service.cluster.node import (
    CLOSING,
    OFFLINE,
    ONLINE,
    PAUSED,
    PAUSING,
    Membership,
    Node,
    NodeError,
    capture_labels,
    check_cluster,
    check_share,
    node_id,
)
from sluice.pump_service.cluster.replica_check import ReplicaCheck

__all__ = [
    "CLOSING",
    "OFFLINE",
    "ONLINE",
    "PAUSED",
    "PAUSING",
    "ClientConnection",
    "ClientLiveness",
    "FutureTsLimit",
    "Heartbeat",
    "HistoryLostError",
    "Membership",
    "Node",
    "NodeError",
    "PdClock",
    "ReplicaCheck",
    "ServiceSafePoint",
    "TiKVResolver",
    "capture_labels",
    "check_cluster",
    "check_share",
    "node_id",
]
