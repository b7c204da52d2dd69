"""Answer gRPC calls but WriteBinlog on a fast-path connection: PullBinlogs, sluice.Window."""

from sluice.pump_service.calls.pulls import PullBinlogsCalls
from sluice.pump_service.calls.router import RpcRouter
from sluice.pump_service.calls.window_service import WindowService
from sluice.pump_service.calls.windows import WindowCalls

__all__ = ["PullBinlogsCalls", "RpcRouter", "WindowCalls", "WindowService"]
