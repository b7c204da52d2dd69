"""Check commits that came after landing had passed their timestamps.

One that isn't landed stops it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from sluice.etl.landing._pump_errors import MissedCommitError
from sluice.relay import RelayLog
from sluice.relay.known_pumps import LANDED, MISSED, LateCommit, PumpsDocument
from sluice.tidb import tso

if TYPE_CHECKING:
    from sluice.tidb import PumpReader

_UNPURGED_SPANS = tso.span(6 * 86_400_000), tso.span(3_600_000)
"""Before the end of landing, where the beginning is purged: pumps keep seven days by default."""


class LateCommitCheck:
    """Look up each late commit once.

    The relay log keeps the outcome, since windows are removed in time.
    """

    def __init__(self, relay: RelayLog | None) -> None:
        self._relay = relay
        self._resolved: set[int] = set()

    def check(self, pump: str, late: Iterable[tuple[int, int]]) -> None:
        """Raise MissedCommitError for the first (commit_ts, start_ts) that is missing.

        Raises relay errors.
        """
        for commit_ts, start_ts in late:
            if self._relay is None or commit_ts in self._resolved:
                continue
            if _outcome(self._relay, pump, commit_ts, start_ts) == MISSED:
                raise MissedCommitError(
                    f"pump {pump!r} received the commit of transaction {start_ts} at"
                    f" {tso.text(commit_ts)} after landing had passed it: it is missing in the"
                    " relay log and downstream. Did PD's clock go back, or was the transaction"
                    " decided by hand?",
                    hint=(
                        "bring its rows: `sluice verify` with --repair --apply; then `sluice txn"
                        f" skip {commit_ts}` and `sluice resume`"
                    ),
                )
            self._resolved.add(commit_ts)

    def check_new_pump(self, pump: str, reader: PumpReader, lo: int) -> None:
        """Raise MissedCommitError if a pump that never counted holds commits through `lo` (TSO).

        A pump registers before it takes writes, and landing lists pumps after it took its
        timestamp. So a new pump has none, unless the registry had lost its entry. One accepted
        commit accepts all. Raises PumpReadError.
        """
        began_at = self._relay.began_at() if self._relay is not None else None
        if self._relay is None or began_at is None or began_at >= lo:
            return
        if (first := _first_commit(reader, began_at, lo)) is None:
            return
        commit_ts, start_ts = first
        if _recorded(self._relay, commit_ts, LateCommit(start_ts, pump, MISSED)) == MISSED:
            raise MissedCommitError(
                f"pump {pump!r} was not in the registry when commits through {tso.text(lo)} were"
                " landed, and holds some of them: they are missing in the relay log and"
                f" downstream, the first at {tso.text(commit_ts)}. Did the registry lose its"
                " entry?",
                hint=(
                    "bring their rows: `sluice verify` with --repair --apply; then `sluice txn skip"
                    f" {commit_ts}` and `sluice resume`"
                ),
            )


def _first_commit(reader: PumpReader, began_at: int, hi: int) -> tuple[int, int] | None:
    """Return (commit_ts, start_ts) of the first transaction in (began_at, hi] the pump still has.

    A pump purges by its clock whether or not it holds anything, so a purged beginning shows
    nothing about a new pump. Raises PumpReadError.
    """
    import grpc

    from sluice.tidb import PumpReadError
    from sluice.tidb.rpc import status

    for lo in (began_at, *(hi - span for span in _UNPURGED_SPANS if hi - span > began_at)):
        batches: Any = reader.read(lo, hi)
        try:
            with contextlib.closing(batches):
                for batch in batches:
                    if batch.num_rows:
                        return (
                            batch.column("commit_ts")[0].as_py(),
                            batch.column("start_ts")[0].as_py(),
                        )
            return None
        except PumpReadError as error:
            if status(error.__cause__ or error) != grpc.StatusCode.OUT_OF_RANGE:
                raise
    return None


def _outcome(relay: RelayLog, pump: str, commit_ts: int, start_ts: int) -> str:
    known = relay.known_pumps.load().late.get(commit_ts)
    if known is not None:
        return known.outcome
    return _recorded(
        relay,
        commit_ts,
        LateCommit(start_ts, pump, LANDED if _is_there(relay, commit_ts, start_ts) else MISSED),
    )


def _recorded(relay: RelayLog, commit_ts: int, found: LateCommit) -> str:
    """Record a late commit unless the relay log has it. Return its outcome there."""

    def with_it(seen: PumpsDocument) -> PumpsDocument:
        return replace(seen, late={commit_ts: found} | dict(seen.late))

    return relay.known_pumps.change(with_it).late[commit_ts].outcome


def _is_there(relay: RelayLog, commit_ts: int, start_ts: int) -> bool:
    """Return whether a commit is landed, or lies before the relay log's begin."""
    window = relay.find(commit_ts - 1)
    if window is not None and window.lo < commit_ts <= window.hi:
        found = relay.read([window])
        is_it = pc.and_(
            pc.equal(found["commit_ts"], commit_ts), pc.equal(found["start_ts"], start_ts)
        )
        return bool(pc.any(is_it).as_py())
    began_at = relay.began_at()
    return began_at is None or commit_ts <= began_at
