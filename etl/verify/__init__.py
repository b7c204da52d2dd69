"""Verification: whether both sides are equal, proved at a live checkpoint, and which rows differ."""

from etl.verify.checksum import Checksum
from etl.verify.errors import VerifyError
from etl.verify.side import CHANGED, EXTRA, MISSING, ComparedTable, Difference, KeyRange, Side

__all__ = [
    "CHANGED",
    "EXTRA",
    "MISSING",
    "Checksum",
    "ComparedTable",
    "Difference",
    "KeyRange",
    "Side",
    "VerifyError",
]
