"""Capture committed changes from TiKV, as whole transactions in commit order.

Main types: `Capture`, which runs it, in `capture`; `CapturedTransaction`, `KeyChange` and the
`CaptureSink` that takes them, in `transactions`; `make_sink` in `binlog_writer`. May import: store,
tidb, errors.
"""

from sluice.pump_service.capture.binlog_writer import make_sink
from sluice.pump_service.capture.capture import Capture, CaptureCluster, CaptureStatus
from sluice.pump_service.capture.transactions import CapturedTransaction, CaptureSink, KeyChange

__all__ = [
    "Capture",
    "CaptureCluster",
    "CaptureSink",
    "CaptureStatus",
    "CapturedTransaction",
    "KeyChange",
    "make_sink",
]
