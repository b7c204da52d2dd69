"""etcd, and what stands there: the registry of pumps and drainers, the TiDB servers."""

from sluice.tidb.etcd.client import (
    EtcdClient,
    EtcdError,
    EtcdWatch,
    KeyListing,
    KeyValue,
    WatchBatch,
    WatchEvent,
)
from sluice.tidb.etcd.pump_registry import (
    CAPTURED_LABEL,
    DRAINED_LABEL,
    SHARE_LABEL,
    NodeStatus,
    Registry,
    RegistryError,
)
from sluice.tidb.etcd.topology import TiDBServer, parse_version, tidb_servers, tidb_versions

__all__ = [
    "CAPTURED_LABEL",
    "DRAINED_LABEL",
    "SHARE_LABEL",
    "EtcdClient",
    "EtcdError",
    "EtcdWatch",
    "KeyListing",
    "KeyValue",
    "NodeStatus",
    "Registry",
    "RegistryError",
    "TiDBServer",
    "WatchBatch",
    "WatchEvent",
    "parse_version",
    "tidb_servers",
    "tidb_versions",
]
