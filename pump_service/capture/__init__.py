"""Capture committed changes from TiKV, as whole transactions in commit order.

Main types: `CapturedTransaction`, `KeyChange` and the `CaptureSink` that takes them, in
`transactions`. May import: tidb, errors.
"""

from sluice.pump_service.capture.transactions import CapturedTransaction, CaptureSink, KeyChange

__all__ = ["CaptureSink", "CapturedTransaction", "KeyChange"]
