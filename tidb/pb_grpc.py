"""The gRPC stubs and servicer base classes, under the names of the messages in `sluice.tidb.pb`."""

from sluice.tidb._pb import cdcpb_pb2_grpc as cdc
from sluice.tidb._pb import etcdserverpb_pb2_grpc as etcd
from sluice.tidb._pb import pdpb_pb2_grpc as pd
from sluice.tidb._pb import pump_pb2_grpc as pump
from sluice.tidb._pb import sluice_pb2_grpc as window
from sluice.tidb._pb import tikvpb_pb2_grpc as tikv

__all__ = ["cdc", "etcd", "pd", "pump", "tikv", "window"]
