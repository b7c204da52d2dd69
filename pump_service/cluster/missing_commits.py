"""Ask TiKV for the outcome of a transaction whose Commit or Rollback never reached the pump.

The order of calls matters. MvccGetByKey on the primary key only reads, so it comes first, and for
young transactions it is the only call: finding nothing may mean that the prewrite is still running.
KvCheckTxnStatus rolls back a transaction without a lock or with an expired one. So it is called
only past the age at which TiDB has given up every transaction, or once the TiDB that sent it is
gone. If that TiDB lives after all, TiKV rejects its prewrite and its client gets the error, so the
outcome is the same everywhere. The call gets the transaction's own start_ts as the caller's, which
pushes nothing, and a TSO of PD's as the current one, because TiKV's clock follows it.

TiKV's garbage collection drops a commit record with the row's old version. So for a transaction
that began before TiKV's safe point, finding nothing proves nothing, and CheckTxnStatus would report
a committed one as rolled back. It isn't called then; an operator decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sluice.errors import SluiceError
from sluice.pump_service.store import TxnOutcome, TxnOutcomeKind
from sluice.tidb import tso
from sluice.tidb.tikv import Mvcc, TiKVError, TxnKind, TxnStatus

_PENDING = TxnOutcome(TxnOutcomeKind.PENDING)


class OutcomeUnknown(SluiceError):
    """Report that TiKV no longer knows the outcome of a transaction."""

    hint = "decide its outcome: `PUT /verdict/<start_ts>/<commit_ts or rollback>`"


class ResolverTiKV(Protocol):
    """Declare the methods of tidb.tikv.TiKVClient that are needed."""

    def mvcc_get(self, key: bytes) -> Mvcc: ...

    def check_txn_status(
        self,
        primary: bytes,
        start_ts: int,
        caller_start_ts: int,
        current_ts: int,
        *,
        rollback_if_not_exist: bool,
    ) -> TxnStatus: ...


class ResolverPD(Protocol):
    """Declare the methods of tidb.pd.PDClient that are needed."""

    def tso(self) -> int: ...

    def get_gc_safe_point(self) -> int: ...


class TiKVResolver:
    """Resolve outcomes for `Store.open`.

    Thread-safe as its clients, whose timeouts bound each call.
    """

    def __init__(
        self,
        tikv: ResolverTiKV,
        pd: ResolverPD,
        *,
        max_txn_time_s: float,
        is_gone: Callable[[int], bool] = lambda start_ts: False,
    ) -> None:
        """Create a resolver; `max_txn_time_s` is the setting prewrite-timeout.

        `is_gone(start_ts)` returns whether the TiDB that sent this Prewrite is dead; False in
        doubt.
        """
        self._tikv, self._pd, self._is_gone = tikv, pd, is_gone
        self._max_txn_ms = max_txn_time_s * 1000

    def __call__(self, start_ts: int, prewrite_key: bytes) -> TxnOutcome:
        """Return the outcome of the transaction with this start_ts and primary key (raw).

        Returns PENDING while it may still commit. Raises TiKVError or PDError if no server answers,
        and OutcomeUnknown if none knows: an outcome is never guessed.
        """
        failure: TiKVError | None = None
        locked = False
        try:
            found = self._tikv.mvcc_get(prewrite_key).status(start_ts)
            outcome = _outcome_of(found, start_ts)
            if outcome is not None:
                return outcome
            locked = found.kind is TxnKind.LOCKED
        except TiKVError as error:
            failure = error
        now = self._pd.tso()
        if tso.ms_between(start_ts, now) <= self._max_txn_ms and not self._is_gone(start_ts):
            if failure is not None:
                raise failure
            return _PENDING
        if not locked and start_ts < self._pd.get_gc_safe_point():  # TiKV keeps all later commits
            raise OutcomeUnknown(
                "TiKV has neither lock nor record of it, but has dropped old records through PD's"
                " GC safe point, which is later than its start: whether it committed can't be"
                f" known. Compare its rows (GET /debug/binlog/{start_ts}) with upstream, then say"
                f" PUT /verdict/{start_ts}/rollback, or PUT /verdict/{start_ts}/<commit_ts>, to"
                " this pump"
            ) from failure
        status = self._tikv.check_txn_status(
            prewrite_key, start_ts, start_ts, now, rollback_if_not_exist=True
        )
        return _outcome_of(status, start_ts) or _PENDING


def _outcome_of(status: TxnStatus, start_ts: int) -> TxnOutcome | None:
    """Return the outcome, or None if the status decides nothing."""
    if status.kind is TxnKind.COMMITTED:
        if status.commit_ts <= start_ts:
            raise TiKVError(
                f"TiKV reports that transaction {start_ts} committed at {status.commit_ts}, before"
                " it began"
            )
        return TxnOutcome(TxnOutcomeKind.COMMITTED, status.commit_ts)
    if status.kind is TxnKind.ROLLED_BACK:
        return TxnOutcome(TxnOutcomeKind.ROLLED_BACK)
    return None
