"""TiDB's side of the wire: protobufs, PD, TiKV, etcd, the pump registry and clients of pumps.

Names load on first use, so that a process that only decodes rows doesn't load grpc.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.tidb.etcd import (
        EtcdClient,
        EtcdError,
        KeyValue,
        NodeStatus,
        Registry,
        RegistryError,
        WatchBatch,
        WatchEvent,
    )
    from sluice.tidb.pd import PDClient, PDError, Region, Store
    from sluice.tidb.pumps import (
        Entity,
        PumpClient,
        PumpReader,
        PumpReadError,
        PumpWriteError,
        WindowBounds,
        WriteTimes,
    )
    from sluice.tidb.rpc import TLS
    from sluice.tidb.tikv import TiKVClient, TiKVError, TxnStatus
    from sluice.tidb.tikv.meta import read_ddl_job, read_ddl_jobs, read_schema_version

_HOME = {
    "EtcdClient": "etcd",
    "EtcdError": "etcd",
    "KeyValue": "etcd",
    "WatchBatch": "etcd",
    "WatchEvent": "etcd",
    "read_ddl_job": "tikv.meta",
    "read_ddl_jobs": "tikv.meta",
    "read_schema_version": "tikv.meta",
    "PDClient": "pd",
    "PDError": "pd",
    "Region": "pd",
    "Store": "pd",
    "PumpClient": "pumps",
    "WriteTimes": "pumps",
    "PumpWriteError": "pumps",
    "Entity": "pumps",
    "PumpReader": "pumps",
    "PumpReadError": "pumps",
    "WindowBounds": "pumps",
    "NodeStatus": "etcd",
    "Registry": "etcd",
    "RegistryError": "etcd",
    "TLS": "rpc",
    "TiKVClient": "tikv",
    "TiKVError": "tikv",
    "TxnStatus": "tikv",
}

__all__ = [
    "TLS",
    "Entity",
    "EtcdClient",
    "EtcdError",
    "KeyValue",
    "NodeStatus",
    "PDClient",
    "PDError",
    "PumpClient",
    "PumpReadError",
    "PumpReader",
    "PumpWriteError",
    "Region",
    "Registry",
    "RegistryError",
    "Store",
    "TiKVClient",
    "TiKVError",
    "TxnStatus",
    "WatchBatch",
    "WatchEvent",
    "WindowBounds",
    "WriteTimes",
    "read_ddl_job",
    "read_ddl_jobs",
    "read_schema_version",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sluice.tidb' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
