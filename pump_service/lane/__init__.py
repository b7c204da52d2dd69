"""The fast WriteBinlog lane: an HTTP/2 server side for unary gRPC in plain Python, and its client side for load.

Why it exists: TiDB calls WriteBinlog twice a transaction, and grpcio in Python answers 4,000 to 7,000 calls/s. The lane
handles all the calls of one read together, so it answers several times as many.
"""

from pump_service.lane.client import LaneClient
from pump_service.lane.connection import Lane
from pump_service.lane.context import LaneContext
from pump_service.lane.limits import LaneLimits
from pump_service.lane.places import Place, Places
from pump_service.lane.roles import Connection

__all__ = ["Connection", "Lane", "LaneClient", "LaneContext", "LaneLimits", "Place", "Places"]
