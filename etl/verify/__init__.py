"""Verify that both sides are equal, at a live checkpoint, and find the rows that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.lazy_exports import lazy_getattr
from sluice.etl.verify.checksum import Checksum
from sluice.etl.verify.endpoint import (
    CHANGED,
    EXTRA,
    MISSING,
    ComparedTable,
    Difference,
    KeyRange,
    VerifyEndpoint,
)
from sluice.etl.verify.errors import VerifyError

if TYPE_CHECKING:
    from sluice.etl.verify.result import AUTO, TableResult, VerifyRequest, VerifySummary
    from sluice.etl.verify.run import KIND, cancel_verify, create_verify, run_verify

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
    "TableResult",
    "VerifyEndpoint",
    "VerifyError",
    "VerifyRequest",
    "VerifySummary",
    "cancel_verify",
    "create_verify",
    "run_verify",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "AUTO": "sluice.etl.verify.result",
        "KIND": "sluice.etl.verify.run",
        "TableResult": "sluice.etl.verify.result",
        "VerifyRequest": "sluice.etl.verify.result",
        "VerifySummary": "sluice.etl.verify.result",
        "cancel_verify": "sluice.etl.verify.run",
        "create_verify": "sluice.etl.verify.run",
        "run_verify": "sluice.etl.verify.run",
    },
)
