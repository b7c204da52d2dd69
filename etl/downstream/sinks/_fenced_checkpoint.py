"""Hold the checkpoint row for the one process that writes, and the transaction that moves it.

Every commit moves the row from the place it was locked at, so whatever happened to a connection or
a process, the row shows what is done. A token of this process is in it: a process that takes over
puts another one there, and shuts this one out.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sluice.etl.downstream import (
    Checkpoint,
    CheckpointMovedError,
    CheckpointTable,
    DownstreamError,
    LoadData,
    MySQLSession,
    Query,
    StatementOutcome,
    begin_optimistic,
)
from sluice.etl.downstream.sinks.sink import CheckpointGuard, ConflictGate


@dataclass(frozen=True, slots=True)
class PipelinedCommit:
    """A transaction that is to be committed, or rolled back.

    It has the row as it is written there, and what each statement did.
    """

    checkpoint: Checkpoint
    answers: Sequence[StatementOutcome]


class FencedCheckpoint:
    """The row in `table`, through `session`. Raises CheckpointMovedError and DownstreamError."""

    def __init__(self, session: MySQLSession, table: CheckpointTable) -> None:
        self._session = session
        session.before_write = self._fence
        self._table = table
        self._lock = table.writer_lock()
        self._process = ""
        self._accepted: frozenset[str | None] | None = None
        """The processes that the row may name when it is read again; None before the first time."""
        self._is_locked = False
        self.guard: CheckpointGuard | None = None
        self.gate: ConflictGate | None = None
        """Asked at each transaction's beginning, which is optimistic then."""
        self.value: Checkpoint | None = None
        """The row as this process left it; None: there is none."""
        self.in_transaction = False

    def reached(self) -> Checkpoint:
        """Return the row, or a checkpoint at 0 where nothing is applied."""
        return self.value or Checkpoint(0)

    def take(self, wait_s: float) -> Checkpoint | None:
        """Connect, become the writing process, and return what the one before left.

        None for nothing. A DDL statement of that process that still runs is waited for, at most
        `wait_s`. Raises the guard's errors, too.
        """
        self._forget_transaction()
        self._session.connect()
        if self.guard is not None and not self._table.exists():
            self.guard.check_checkpoint(None)  # a mistyped name makes no schema
        self._table.create()
        # before the session of another pipeline, or of a successor, would be ended
        found = self._table.load()
        self._check_mine(found)
        if self.guard is not None:
            self.guard.check_checkpoint(found)
        self._session.query("COMMIT")
        self._lock.acquire(self._session, wait_s)
        self._claim()
        return self.value

    def begin(self, *, lock: bool = True) -> None:
        """Begin a transaction, lock the row, and check that nothing else moved it."""
        if not self.in_transaction:
            self._begin()
        if lock and not self._is_locked:
            self._table.lock(self.value)
            self._is_locked = True

    def _begin(self) -> None:
        self.in_transaction = True
        if self.gate is None:
            self._session.begin()
            return
        while (wait_s := self.gate(begin_optimistic(self._session))) > 0:
            self._session.rollback()
            time.sleep(wait_s)

    def check(self) -> None:
        """Lock the row again, after a statement that commits by itself has let go of it."""
        self._table.lock(self.value)

    def save(
        self,
        checkpoint: Checkpoint,
        confirm: Callable[[], None] = lambda: None,
        channel: int | None = None,
    ) -> None:
        """Write the row and commit, with the mark of `channel` as `MySQLSession.commit`.

        `confirm` is asked when the row is written: the first one can't be locked before it is
        there.
        """
        checkpoint = self._owned(checkpoint)
        self._table.save(checkpoint, first=self.value is None)
        confirm()
        self._commit_at(checkpoint, channel)

    @property
    def can_pipeline(self) -> bool:
        """Return whether `try_commit` may be used now."""
        return (
            self.value is not None
            and self.gate is None
            and not self.in_transaction
            and self._session.is_pipelining
        )

    def try_commit(
        self, orders: Sequence[bytes | LoadData], checkpoint: Checkpoint
    ) -> PipelinedCommit:
        """Run `orders` in a transaction that swaps the row, in one round trip, without committing.

        The row is locked, compared with what was read last, and written again. No transaction may
        be open.
        """
        assert self.value is not None
        checkpoint = self._owned(checkpoint)
        swap = self._table.swap_statement(self.value, checkpoint)
        swapped, *answers = self._pipelined([swap.encode("utf-8", "surrogateescape"), *orders])
        if isinstance(swapped, DownstreamError):
            raise swapped
        if swapped != 1:
            # It is another row, or the same one written otherwise: it has to be read.
            self.roll_back()
            answers = self._attempt_reading(orders, checkpoint)
        self._is_locked = True
        return PipelinedCommit(checkpoint, answers)

    def _attempt_reading(
        self, orders: Sequence[bytes | LoadData], checkpoint: Checkpoint
    ) -> list[StatementOutcome]:
        """Return the answers to `orders`, after reading the row."""
        save = self._table.save_statement(checkpoint).encode("utf-8", "surrogateescape")
        found, *answers, saved = self._pipelined(
            [Query(self._table.lock_statement()), *orders, save]
        )
        for answer in (found, saved):
            if isinstance(answer, DownstreamError):
                raise answer
        try:
            self._table.expect(self.value, found if isinstance(found, list) else [])
        except CheckpointMovedError:
            with contextlib.suppress(DownstreamError):
                self.roll_back()
            raise
        return answers

    def _pipelined(self, orders: Sequence[bytes | LoadData | Query]) -> list[StatementOutcome]:
        """Return the answers to `orders`, in a transaction of theirs."""
        self.in_transaction = True
        begun, *answers = self._session.execute_pipelined([b"START TRANSACTION", *orders])
        if isinstance(begun, DownstreamError):
            raise begun
        return answers

    def finish_commit(self, attempt: PipelinedCommit, channel: int | None = None) -> None:
        """Commit what was attempted, with the mark of `channel` as `MySQLSession.commit`."""
        assert self._is_locked
        self._commit_at(attempt.checkpoint, channel)

    def _owned(self, checkpoint: Checkpoint) -> Checkpoint:
        owner = self.guard.pipeline if self.guard is not None else checkpoint.owner
        return replace(checkpoint, process=self._process, owner=owner)

    def _commit_at(self, checkpoint: Checkpoint, channel: int | None) -> None:
        self._session.commit(channel)
        self.value = checkpoint
        self._accepted = frozenset({self._process})
        self._forget_transaction()

    def commit_here(self) -> None:
        """Commit what was written in this transaction; the row, which is locked, stays as it is."""
        assert self._is_locked
        self._session.commit()
        self._forget_transaction()

    def change(self, checkpoint: Checkpoint, confirm: Callable[[], None] = lambda: None) -> None:
        """Write the row in a transaction of its own; `confirm` is asked when the row is locked."""
        if self.can_pipeline:
            attempt = self.try_commit([], checkpoint)
            confirm()
            self.finish_commit(attempt)
            return
        self.begin()
        self.save(checkpoint, confirm)

    def release(self) -> None:
        """End the transaction of looking at things, in which nothing was written."""
        self._session.query("COMMIT")

    def roll_back(self) -> None:
        """Undo what is not committed."""
        self._session.rollback()
        self._forget_transaction()

    def _claim(self) -> None:
        """Read the row and put a new token into it, so that no other process commits any more.

        Raises CheckpointMovedError if another process has claimed it since this one did: a process
        that was taken over doesn't take over again.
        """
        found = self._table.load(wait=True)
        process = self._check_mine(found)
        if self.guard is not None:
            self.guard.check_checkpoint(found)
        self._process = secrets.token_hex(8)
        # until it is known to be there
        self._accepted = (self._accepted or frozenset()) | {process, self._process}
        self.value = found
        if found is None:
            self._session.query("COMMIT")
        else:
            self.save(found)

    def _check_mine(self, found: Checkpoint | None) -> str | None:
        """Return the process that the row names.

        Raises CheckpointMovedError if another one has claimed it since this one did.
        """
        process = found.process if found else None
        if self._accepted is not None and process not in self._accepted:
            self._session.query("ROLLBACK")
            raise self._table.moved(found, self.value)
        return process

    def _fence(self) -> None:
        """Check the checkpoint before a statement that writes.

        In a transaction the row is locked and compared before the commit.
        """
        if not self.in_transaction and self._process:
            self._table.lock(self.value)

    def _forget_transaction(self) -> None:
        self.in_transaction = self._is_locked = False
