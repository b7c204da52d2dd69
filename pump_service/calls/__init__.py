"""What answers gRPC calls other than WriteBinlog in the lane: PullBinlogs, sluice.Window, and grpcio for the rest."""

from pump_service.calls.bridge import Bridge
from pump_service.calls.grpc_server import PumpRPC
from pump_service.calls.pulls import Pulls
from pump_service.calls.windows import Windows

__all__ = ["Bridge", "Pulls", "PumpRPC", "Windows"]
