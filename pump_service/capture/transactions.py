"""Define what captured transactions are, and what takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol


class KeyChange(NamedTuple):
    """Hold what a transaction did to one key.

    `key` is raw. `value` is b"" for a delete, `old_value` b"" if the key had none before.
    """

    key: bytes
    value: bytes
    old_value: bytes
    is_delete: bool


class CapturedTransaction(NamedTuple):
    """Hold one committed transaction: its identity is (commit_ts, start_ts).

    `changes` are sorted by key, each key once. They may be iterated more than once while `advance`
    runs, and may be read from disk. `txn_source` has TiDB's bits for where the write came from.
    """

    start_ts: int
    commit_ts: int
    txn_source: int
    changes: Iterable[KeyChange]


class CaptureSink(Protocol):
    """Declare what takes the transactions."""

    def advance(self, transactions: Iterator[CapturedTransaction], resolved_ts: int) -> None:
        """Make all transactions with a commit_ts in (previous resolved_ts, `resolved_ts`] durable.

        They are ordered by (commit_ts, start_ts), each comes once. One thread calls this, and
        `resolved_ts` never goes back. When the call returns, all of them are durable. An exception
        ends the capture: the next start begins at the last `resolved_ts` that was durable.
        """
