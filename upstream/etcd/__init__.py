"""etcd, and what stands there: the registry of pumps and drainers, the TiDB servers."""

from upstream.etcd.client import EtcdClient, EtcdError, KeyValue, Watch, WatchBatch, WatchEvent
from upstream.etcd.registry import DRAINED_LABEL, NodeStatus, Registry, RegistryError
from upstream.etcd.topology import TiDBServer, tidb_servers

__all__ = [
    "DRAINED_LABEL",
    "EtcdClient",
    "EtcdError",
    "KeyValue",
    "NodeStatus",
    "Registry",
    "RegistryError",
    "TiDBServer",
    "Watch",
    "WatchBatch",
    "WatchEvent",
    "tidb_servers",
]
