"""The gRPC stubs and servicer base classes, under the same names as the messages in `upstream.pb`."""

from upstream._pb import etcdserverpb_pb2_grpc as etcd
from upstream._pb import pdpb_pb2_grpc as pd
from upstream._pb import pump_pb2_grpc as pump
from upstream._pb import sluice_pb2_grpc as window
from upstream._pb import tikvpb_pb2_grpc as tikv

__all__ = ["etcd", "pd", "pump", "tikv", "window"]
