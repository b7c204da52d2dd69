"""Store records durably, and return transactions in commit order.

docs/explanation/no-loss.md has the store's promises.
"""

from sluice.pump_service.store.errors import (
    CorruptRecordError,
    InvalidRecordError,
    NoSpaceError,
    RefusedRecordsError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreLockedError,
    WindowPurgedError,
)
from sluice.pump_service.store.options import IndexOptions, StoreOptions
from sluice.pump_service.store.records import (
    PulledBinlog,
    Record,
    Resolver,
    StoreStats,
    TxnOutcome,
    TxnOutcomeKind,
    WindowReach,
)
from sluice.pump_service.store.store import Store
from sluice.pump_service.store.verdict_checks import DoubtfulRecords

__all__ = [
    "CorruptRecordError",
    "DoubtfulRecords",
    "IndexOptions",
    "InvalidRecordError",
    "NoSpaceError",
    "PulledBinlog",
    "Record",
    "RefusedRecordsError",
    "Resolver",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreFailedError",
    "StoreLockedError",
    "StoreOptions",
    "StoreStats",
    "TxnOutcome",
    "TxnOutcomeKind",
    "WindowPurgedError",
    "WindowReach",
]
