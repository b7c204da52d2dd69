"""Landed windows become steps. Runs in Spark's workers."""

from etl.prepare._documents import BatchDocument, BegunFlight, CountedBefore, WindowDocument
from etl.prepare._options import PrepareOptions
from etl.prepare._windows import prepare, prepare_steps
from etl.prepare.worker import PrepareWindows

__all__ = [
    "BatchDocument",
    "BegunFlight",
    "CountedBefore",
    "PrepareOptions",
    "PrepareWindows",
    "WindowDocument",
    "prepare",
    "prepare_steps",
]
