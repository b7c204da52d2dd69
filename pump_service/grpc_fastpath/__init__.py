"""Serve WriteBinlog over HTTP/2 in plain Python, for unary gRPC, with a client side for load.

Reason: TiDB calls WriteBinlog twice a transaction, and grpcio in Python answers 4,000 to 7,000
calls/s. The lane handles all the calls of one read together, so it answers several times as many.
"""

from sluice.pump_service.grpc_fastpath.client import FastPathClient
from sluice.pump_service.grpc_fastpath.connection import FastPathConnection
from sluice.pump_service.grpc_fastpath.context import FastPathServer
from sluice.pump_service.grpc_fastpath.limits import FastPathLimits
from sluice.pump_service.grpc_fastpath.places import ConnectionSlot, ConnectionSlots
from sluice.pump_service.grpc_fastpath.roles import ClientCalls

__all__ = [
    "ClientCalls",
    "ConnectionSlot",
    "ConnectionSlots",
    "FastPathClient",
    "FastPathConnection",
    "FastPathLimits",
    "FastPathServer",
]
