"""The protobuf messages, one alias a protocol: `from upstream import pb; pb.binlog.Binlog()`.

`tikv` holds the messages of package kvrpcpb and `etcd` those of etcdserverpb (their key-value pairs are in `mvcc`);
`window` is the project's own service `sluice.Window`. `file_binlog` and `secondary` are what
the original Drainer writes to files and to Kafka. The gRPC stubs and servicers are in `upstream.pb_grpc`, apart, so
that reading a message doesn't load grpc. The modules are generated: `python -m upstream.genproto`.
"""

from upstream._pb import binlog_pb2 as binlog
from upstream._pb import errorpb_pb2 as errorpb
from upstream._pb import etcdserverpb_pb2 as etcd
from upstream._pb import kvrpcpb_pb2 as tikv
from upstream._pb import metapb_pb2 as metapb
from upstream._pb import mvccpb_pb2 as mvcc
from upstream._pb import pb_binlog_pb2 as file_binlog
from upstream._pb import pdpb_pb2 as pd
from upstream._pb import pump_pb2 as pump
from upstream._pb import secondary_binlog_pb2 as secondary
from upstream._pb import sluice_pb2 as window

__all__ = ["binlog", "errorpb", "etcd", "file_binlog", "metapb", "mvcc", "pd", "pump", "secondary", "tikv", "window"]
