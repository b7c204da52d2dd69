"""Define the records of the stand-in TiKV's multi-version store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sluice.errors import Signal


@dataclass(frozen=True, slots=True)
class Write:
    """A record of the write column: `start_ts` committed at `commit_ts`, or rolled back."""

    start_ts: int
    commit_ts: int
    rollback: bool = False
    short_value: bytes = b""


@dataclass(frozen=True, slots=True)
class Change:
    """Row that a lock writes. `value` None deletes; `old_value` None: read it from the store."""

    value: bytes | None
    old_value: bytes | None = None
    txn_source: int = 0


class Applied(NamedTuple):
    """One key that a command changed. `kind`: a cdcpb.Event.LogType; `value` None: a delete."""

    kind: int
    key: bytes
    start_ts: int
    commit_ts: int = 0
    value: bytes | None = None
    old_value: bytes = b""
    txn_source: int = 0


class Version(NamedTuple):
    """A key's value for readers from `commit_ts` on; `value` None: nothing.

    `old_value`: the one before, where a recording knows it: rows that DDL has copied have no other
    version here. None: that of the version before.
    """

    commit_ts: int
    value: bytes | None
    start_ts: int
    txn_source: int = 0
    old_value: bytes | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """An open transaction's lock. `ttl_ms` counts from the physical part of start_ts."""

    key: bytes
    start_ts: int
    ttl_ms: int
    primary: bytes = b""
    """The primary key; b"": `key` is the primary."""


@dataclass(frozen=True, slots=True)
class TxnStatus:
    """Answer to KvCheckTxnStatus: `lock`, `commit_ts`, or neither with the action taken.

    The action is kvrpcpb.Action.
    """

    lock: Lock | None = None
    commit_ts: int = 0
    action: int = 0


class Locked(Signal):
    """The key is locked by a transaction older than the read."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(f"key {lock.key.hex()} is locked by transaction {lock.start_ts}")
        self.lock = lock


class TxnNotFound(Signal):
    """Neither lock nor record of a transaction, and nothing was to be written about it."""
