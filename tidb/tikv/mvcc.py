"""Describe what TiKV has of a key, and what became of the transactions that wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sluice.tidb import pb


class TxnKind(StrEnum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    LOCKED = "locked"  # still open: its lock lives
    UNDECIDED = "undecided"  # ask again
    NOT_FOUND = "not_found"  # no lock, no record


@dataclass(frozen=True, slots=True)
class TxnStatus:
    """kind, the commit TSO (0 unless committed) and the lock's life (ms, 0 unless locked)."""

    kind: TxnKind
    commit_ts: int = 0
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class MvccWrite:
    """A finished transaction's record on a key. kind: 0 put, 1 delete, 2 lock, 3 rollback."""

    kind: int
    start_ts: int
    commit_ts: int
    overlapped_rollback: bool = False


@dataclass(frozen=True, slots=True)
class MvccLock:
    """An open transaction's lock on a key.

    Ttl in ms. kind: as of a Write, 4 insert, 5 pessimistic lock.
    """

    start_ts: int
    primary: bytes
    ttl_ms: int
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Mvcc:
    """All that TiKV has of a key: its lock and the records of finished transactions."""

    lock: MvccLock | None
    writes: tuple[MvccWrite, ...]

    def status(self, start_ts: int) -> TxnStatus:
        """Return the outcome of the transaction of start_ts, if this key was its primary.

        Changes nothing in TiKV.

        NOT_FOUND: nothing is known here; the transaction isn't prewritten yet, or was collected
        long ago.
        """
        for write in self.writes:
            if write.start_ts == start_ts:
                if write.kind == pb.tikv.Rollback:
                    return TxnStatus(TxnKind.ROLLED_BACK)
                if write.commit_ts > start_ts:
                    return TxnStatus(TxnKind.COMMITTED, commit_ts=write.commit_ts)
            # TiKV keeps a rollback whose place is taken by another's commit as a mark on that
            # record.
            elif write.commit_ts == start_ts and write.overlapped_rollback:
                return TxnStatus(TxnKind.ROLLED_BACK)
        if self.lock is not None and self.lock.start_ts == start_ts:
            return TxnStatus(TxnKind.LOCKED, ttl_ms=self.lock.ttl_ms)
        return TxnStatus(TxnKind.NOT_FOUND)

    def was_written_by(self, start_ts: int) -> bool:
        """Return whether the transaction that began at start_ts put or deleted the key.

        And wasn't rolled back here. It is known to be committed: a lock that isn't resolved yet is
        a write, too.
        """
        kinds = [write.kind for write in self.writes if write.start_ts == start_ts]
        if self.lock is not None and self.lock.start_ts == start_ts:
            kinds.append(self.lock.kind)
        return any(kind in (pb.tikv.Put, pb.tikv.Del, pb.tikv.Insert) for kind in kinds)
