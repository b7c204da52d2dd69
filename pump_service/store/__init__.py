"""The pump's store: durable records in, transactions in commit order out.

docs/explanation/no-loss.md has its promises.
"""

from pump_service.store.errors import (
    CorruptRecordError,
    InvalidRecordError,
    NoSpaceError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreLockedError,
    WindowPurgedError,
)
from pump_service.store.options import IndexOptions, StoreOptions
from pump_service.store.records import (
    Bounds,
    Entity,
    Record,
    Resolver,
    StoreStats,
    Verdict,
    VerdictKind,
)
from pump_service.store.store import Store

__all__ = [
    "Bounds",
    "CorruptRecordError",
    "Entity",
    "IndexOptions",
    "InvalidRecordError",
    "NoSpaceError",
    "Record",
    "Resolver",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreFailedError",
    "StoreLockedError",
    "StoreOptions",
    "StoreStats",
    "Verdict",
    "VerdictKind",
    "WindowPurgedError",
]
