"""Answer gRPC calls other than WriteBinlog in the lane: PullBinlogs and sluice.Window."""

from pump_service.calls.pulls import Pulls
from pump_service.calls.router import Router
from pump_service.calls.window_service import WindowService
from pump_service.calls.windows import Windows

__all__ = ["Pulls", "Router", "WindowService", "Windows"]
