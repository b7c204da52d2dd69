"""Define the plain values that go in and out of the store."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

MAX_TS = (1 << 63) - 1


class Record(NamedTuple):
    """Hold a WriteBinlog payload, parsed as far as the store needs it."""

    tp: int
    """0 Prewrite, 1 Commit, 2 Rollback or fake."""
    start_ts: int
    commit_ts: int
    payload: bytes
    """The binlog.Binlog message exactly as received."""


class WindowReach(NamedTuple):
    """Describe how far a window that starts at a given lo may reach."""

    hi: int
    transactions: int
    bytes: int


class PulledBinlog(NamedTuple):
    """Hold a message of PullBinlogs: a merged Binlog and its timestamps."""

    payload: bytes
    start_ts: int
    commit_ts: int


class TxnOutcomeKind(enum.Enum):
    """Name the outcomes of a transaction whose Commit or Rollback never came."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    PENDING = "pending"


class TxnOutcome(NamedTuple):
    """Hold a resolver's answer; `commit_ts` counts for COMMITTED only."""

    kind: TxnOutcomeKind
    commit_ts: int = 0


Resolver = Callable[[int, bytes], TxnOutcome]
"""`resolver(start_ts, prewrite_key)`: may block and may raise; both count as "not known yet"."""


class StoreStats(NamedTuple):
    """Hold a snapshot for metrics. Counters run since the store was opened."""

    records: int
    bytes: int
    transactions: int
    batches: int
    write_seconds: float
    fsync_seconds: float
    max_commit_ts: int
    gc_ts: int
    done_gc_ts: int
    pending_prewrites: int
    oldest_pending_ts: int
    queued_bytes: int
    queued_for_index: int
    catching_up: bool
    slow_index_count: int
    slow_index_ends: int
    catch_ups: int
    recoveries: int
    index_errors: int
    resolver_queries: int
    late_commits: int
    contradictions: int
    skipped_bytes: int
    corrupt_records: int
    missing_prewrites: int
    deleted_keys: int
    capacity_bytes: int
    available_bytes: int
    value_log_bytes: int
    segments: int
    writable: bool
    failed: bool
