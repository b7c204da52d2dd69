"""The protobuf messages, one alias a protocol: `from sluice.tidb import pb; pb.binlog.Binlog()`.

`tikv` holds the messages of package kvrpcpb, `cdc` those of cdcpb, and `etcd` those of etcdserverpb
(their key-value pairs are in `mvcc`); `window` is the project's own service `sluice.Window`.
`file_binlog` and `secondary` are what the original Drainer writes to files and to Kafka. The gRPC
stubs and servicers are in `sluice.tidb.pb_grpc`, apart, so that reading a message doesn't load
grpc. Modules load on first use, for making their classes takes time. They are generated: `python -m
sluice.tidb.genproto`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.tidb._pb import binlog_pb2 as binlog
    from sluice.tidb._pb import cdcpb_pb2 as cdc
    from sluice.tidb._pb import errorpb_pb2 as errorpb
    from sluice.tidb._pb import etcdserverpb_pb2 as etcd
    from sluice.tidb._pb import kvrpcpb_pb2 as tikv
    from sluice.tidb._pb import metapb_pb2 as metapb
    from sluice.tidb._pb import mvccpb_pb2 as mvcc
    from sluice.tidb._pb import pb_binlog_pb2 as file_binlog
    from sluice.tidb._pb import pdpb_pb2 as pd
    from sluice.tidb._pb import pump_pb2 as pump
    from sluice.tidb._pb import secondary_binlog_pb2 as secondary
    from sluice.tidb._pb import sluice_pb2 as window

__all__ = [
    "binlog",
    "cdc",
    "errorpb",
    "etcd",
    "file_binlog",
    "metapb",
    "mvcc",
    "pd",
    "pump",
    "secondary",
    "tikv",
    "window",
]

_HOME = {
    "binlog": "binlog_pb2",
    "cdc": "cdcpb_pb2",
    "errorpb": "errorpb_pb2",
    "etcd": "etcdserverpb_pb2",
    "tikv": "kvrpcpb_pb2",
    "metapb": "metapb_pb2",
    "mvcc": "mvccpb_pb2",
    "file_binlog": "pb_binlog_pb2",
    "pd": "pdpb_pb2",
    "pump": "pump_pb2",
    "secondary": "secondary_binlog_pb2",
    "window": "sluice_pb2",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sluice.tidb.pb' has no attribute {name!r}")
    value = importlib.import_module(f"sluice.tidb._pb.{_HOME[name]}")
    globals()[name] = value
    return value
