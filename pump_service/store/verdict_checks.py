"""Check records that contradict what is here: ask TiKV about outcomes, compare Prewrites.

A transaction ends once. A Commit whose Prewrite is here and isn't open, and that isn't here yet
itself, contradicts the outcome before it: one of both is wrong. TiKV knows which. Until then
readers keep what they were given. Only outcomes come here that no connection is known to have sent
the Prewrite of (a second outcome, or the first one after a restart of the pump), so all others cost
nothing.

A transaction has one Prewrite. TiDB sends it again, with the same bytes, when the answer is late:
that one is answered, and not written again. With other bytes it is refused, as the index would
lead readers to the later one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from sluice.errors import SluiceError
from sluice.pump_service.store.binlog_head import encode_outcome, prewrite_key
from sluice.pump_service.store.errors import (
    PrewriteRepeatedError,
    RefusedRecordsError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
)
from sluice.pump_service.store.records import Record, Resolver, TxnOutcomeKind
from sluice.pump_service.store.writer import Done
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE

log = logging.getLogger(__name__)

MAX_QUEUED_OUTCOMES = 4096
"""Queued groups of records, each of one connection; further ones are rejected."""


_PARTS = 2
_RETRY_INTERVAL_S = 5.0
"""How long TiKV isn't asked here after it didn't answer: other groups wait behind its timeout."""


class StoredTransactions(Protocol):
    """Declare the methods of Store that are needed."""

    def wait_caught_up(self, timeout_s: float) -> bool:
        """See Store.wait_caught_up."""

    def all_indexed(self) -> bool:
        """See Store.all_indexed."""

    def is_open(self, start_ts: int) -> bool:
        """See Store.is_open."""

    def holds(self, start_ts: int, commit_ts: int) -> bool:
        """See Store.holds."""

    def prewrite_of(self, start_ts: int) -> bytes | None:
        """See Store.prewrite_of."""

    def submit(self, records: Sequence[Record], done: Done) -> None:
        """See Store.submit."""


class DoubtfulRecords(NamedTuple):
    """Name the Prewrites of a group whose transaction may be here already.

    All outcomes of the group are doubtful, too.
    """

    repeated: Collection[Record]
    """Another Prewrite with that start_ts came."""
    old: Collection[Record] = ()
    """The transaction began so early that it may have ended."""


class _DoubtfulGroup(NamedTuple):
    records: Sequence[tuple[int, Record]]
    """Place in the client's group, and record."""
    repeated: Collection[int]
    """Places of Prewrites whose transaction is here, or was."""
    done: Done
    peer: str


class OutcomeChecks:
    """Check queued groups in one thread, in order of arrival."""

    def __init__(self, store: StoredTransactions, resolver: Resolver) -> None:
        self._store, self._resolver = store, resolver
        self._groups: queue.Queue[_DoubtfulGroup | None] = queue.Queue(MAX_QUEUED_OUTCOMES)
        self._in_doubt: set[int] = set()
        """Opened again because TiKV didn't answer: only its verdict counts."""
        self._written: dict[int, bytes] = {}
        """Prewrites that this round wrote: the index doesn't have them yet."""
        self._ask_again_at = 0.0
        self.contradictions = 0
        self._thread = threading.Thread(target=self._run, name="pump-verdicts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the checks; waiting groups get the error of a closed store."""
        self._groups.put(None)
        self._thread.join()
        while not self._groups.empty():
            if (group := self._groups.get()) is not None:
                group.done(StoreClosedError("the store is closed: nothing can be written any more"))

    def submit(
        self, records: Sequence[Record], done: Done, peer: str, doubtful: DoubtfulRecords
    ) -> None:
        """Queue what is doubtful of a group. Never waits; `done` as in Store.submit_checked.

        Other Prewrites wait for nothing: a client's transaction continues when they are durable.
        """
        repeated, old = ({id(record) for record in each} for each in doubtful)
        plain: list[Record] = []
        rest: list[tuple[int, Record]] = []
        for place, record in enumerate(records):
            if record.tp == PREWRITE and id(record) not in repeated and id(record) not in old:
                plain.append(record)
            else:
                rest.append((place, record))
        if plain:
            done = _both(done)
            self._store.submit(plain, done)
        places = {place for place, record in rest if id(record) in repeated}
        try:
            self._groups.put_nowait(_DoubtfulGroup(rest, places, done, peer))
        except queue.Full:  # the resolver asks TiKV about open Prewrites anyway
            is_done = plain and not repeated and not old
            busy = (
                f"{MAX_QUEUED_OUTCOMES} calls wait already until it is known what they contradict"
            )
            done(None if is_done else StoreBusyError(busy))

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            groups = [group]
            is_over = False
            while not is_over:
                try:
                    more = self._groups.get_nowait()
                except queue.Empty:
                    break
                is_over = more is None
                if more is not None:
                    groups.append(more)
            is_known = self._store.wait_caught_up(0) and self._store.all_indexed()
            self._in_doubt = {ts for ts in self._in_doubt if self._store.is_open(ts)}
            for each in groups:
                try:
                    self._check_group(each, is_known=is_known)
                except (
                    Exception
                ) as error:  # without this thread such outcomes would never be written
                    log.exception("can't write records of %s", each.peer)
                    each.done(error)
            self._written.clear()  # the next round's index has them
            if is_over:
                return

    def _check_group(self, group: _DoubtfulGroup, *, is_known: bool) -> None:
        """Check a group; outcomes behind an index that lags are written unchecked."""
        kept: list[Record] = []
        refused: dict[int, StoreError] = {}
        for place, record in group.records:
            if record.tp != PREWRITE:
                if is_known and self._is_settled(record, group.peer):
                    continue
            elif is_known:
                if (first := self._first_prewrite(record.start_ts)) is not None:
                    if first != record.payload:
                        refused[place] = self._refuse_prewrite(record, first, group.peer)
                    continue
                self._written[record.start_ts] = record.payload
            elif place in group.repeated:
                refused[place] = StoreBusyError(
                    f"the Prewrite of transaction {record.start_ts} came again, and can't be"
                    " compared with the first one before the index has caught up"
                )
                continue
            kept.append(record)
        done = partial(_done_without, group.done, refused) if refused else group.done
        if kept:
            self._store.submit(kept, done)
        else:
            done(None)

    def _first_prewrite(self, start_ts: int) -> bytes | None:
        """Return the payload of the Prewrite that is here; None if there is none."""
        written = self._written.get(start_ts)
        return written if written is not None else self._store.prewrite_of(start_ts)

    def _refuse_prewrite(self, record: Record, first: bytes, peer: str) -> StoreError:
        self.contradictions += 1
        error = PrewriteRepeatedError(
            f"transaction {record.start_ts} has a Prewrite of {len(first)} bytes here, and another"
            f" one of {len(record.payload)} bytes was sent, which is refused"
        )
        log.error("%s: %s; %s", peer or "a client", error, error.hint)
        return error

    def _is_settled(self, record: Record, peer: str) -> bool:
        """Return whether nothing of the record has to be written any more."""
        start_ts = record.start_ts
        if self._store.is_open(start_ts):
            return start_ts in self._in_doubt
        if record.tp != COMMIT:  # it hides no transaction that committed
            return False
        if self._store.holds(start_ts, record.commit_ts):
            return True
        prewrite = self._store.prewrite_of(start_ts)
        return prewrite is not None and not self._is_true(record, prewrite, peer)

    def _is_true(self, record: Record, prewrite: bytes, peer: str) -> bool:
        """Return whether TiKV confirms the Commit."""
        start_ts, commit_ts = record.start_ts, record.commit_ts
        self.contradictions += 1
        if time.monotonic() < self._ask_again_at:
            return self._open_again(record, prewrite, peer, "it didn't answer a moment ago")
        try:
            kind, found_ts = self._resolver(start_ts, prewrite_key(prewrite))
        except SluiceError as error:
            if not error.transient:  # TiKV has dropped what it knew
                return self._refuse(record, peer, str(error))
            self._ask_again_at = time.monotonic() + _RETRY_INTERVAL_S
            return self._open_again(record, prewrite, peer, str(error))
        if kind is TxnOutcomeKind.COMMITTED and found_ts == commit_ts:
            log.error(
                "transaction %d committed at %d according to TiKV: an earlier outcome was wrong,"
                " and readers may have it; compare its rows: `sluice verify`",
                start_ts,
                commit_ts,
            )
            return True
        if kind is TxnOutcomeKind.COMMITTED and not self._store.holds(start_ts, found_ts):
            self._store.submit(
                [Record(COMMIT, start_ts, found_ts, encode_outcome(COMMIT, start_ts, found_ts))],
                _report,
            )
        return self._refuse(record, peer, f"TiKV says {kind.value} ({found_ts})")

    def _open_again(self, record: Record, prewrite: bytes, peer: str, why: str) -> bool:
        """Reopen the Prewrite: readers wait for TiKV's outcome, as for each open Prewrite."""
        log.error(
            "%s reports that transaction %d committed at %d, which contradicts an earlier outcome,"
            " and TiKV doesn't answer (%s): readers wait until it does",
            peer or "a client",
            record.start_ts,
            record.commit_ts,
            why,
        )
        self._in_doubt.add(record.start_ts)
        self._store.submit([Record(PREWRITE, record.start_ts, 0, prewrite)], _report)
        return False

    def _refuse(self, record: Record, peer: str, why: str) -> bool:
        log.error(
            "%s reports that transaction %d committed at %d, which contradicts an earlier outcome;"
            " rejected: %s",
            peer or "a client",
            record.start_ts,
            record.commit_ts,
            why,
        )
        return False


def _both(done: Done) -> Done:
    """Return a callback to be called twice; then it calls `done` with the first error, if any."""
    lock = threading.Lock()
    answers: list[BaseException | None] = []

    def one(error: BaseException | None) -> None:
        with lock:
            answers.append(error)
            is_last = len(answers) == _PARTS
        if is_last:
            done(next((each for each in answers if each is not None), None))

    return one


def _done_without(
    done: Done, refused: Mapping[int, StoreError], error: BaseException | None
) -> None:
    """Answer a group of which some records were refused."""
    done(error if error is not None else RefusedRecordsError(refused))


def _report(error: BaseException | None) -> None:
    if error is not None:
        log.warning("can't write an outcome of TiKV's: %s", error)
