"""Verification: whether both sides are equal, proved at a live checkpoint, and which rows differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.first_use import on_first_use
from etl.verify.checksum import Checksum
from etl.verify.errors import VerifyError
from etl.verify.side import CHANGED, EXTRA, MISSING, ComparedTable, Difference, KeyRange, Side

if TYPE_CHECKING:
    from etl.verify.request import AUTO, VerifyRequest
    from etl.verify.result import TableResult, VerifySummary
    from etl.verify.run import KIND, cancel_verify, create_verify, differing_rows, run_verify

__all__ = [
    "AUTO",
    "CHANGED",
    "EXTRA",
    "KIND",
    "MISSING",
    "Checksum",
    "ComparedTable",
    "Difference",
    "KeyRange",
    "Side",
    "TableResult",
    "VerifyError",
    "VerifyRequest",
    "VerifySummary",
    "cancel_verify",
    "create_verify",
    "differing_rows",
    "run_verify",
]

__getattr__ = on_first_use(
    __name__,
    {
        "AUTO": "etl.verify.request",
        "KIND": "etl.verify.run",
        "TableResult": "etl.verify.result",
        "VerifyRequest": "etl.verify.request",
        "VerifySummary": "etl.verify.result",
        "cancel_verify": "etl.verify.run",
        "create_verify": "etl.verify.run",
        "differing_rows": "etl.verify.run",
        "run_verify": "etl.verify.run",
    },
)
