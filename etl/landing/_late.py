"""Check commits that came after landing had passed their timestamps: one that isn't landed stops it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow.compute as pc

from sluice.etl.landing._pump_errors import MissedCommitError
from sluice.relay import RelayLog
from sluice.relay.known_pumps import LANDED, MISSED, LateCommit, PumpsDocument
from sluice.tidb import tso


class LateCommitCheck:
    """Look up each late commit once. The relay log keeps the outcome, since windows are removed in time."""

    def __init__(self, relay: RelayLog | None) -> None:
        self._relay = relay
        self._resolved: set[int] = set()

    def check(self, pump: str, late: Iterable[tuple[int, int]]) -> None:
        """Raise MissedCommitError for the first (commit_ts, start_ts) that is missing. Raises relay errors."""
        for commit_ts, start_ts in late:
            if self._relay is None or commit_ts in self._resolved:
                continue
            if _outcome(self._relay, pump, commit_ts, start_ts) == MISSED:
                raise MissedCommitError(
                    f"pump {pump!r} received the commit of transaction {start_ts} at {tso.text(commit_ts)} after"
                    " landing had passed it: it is missing in the relay log and downstream. Did PD's clock go back, or"
                    " was the transaction decided by hand?",
                    way_out="bring its rows: `sluice verify` with --repair --apply; then `sluice txn skip"
                    f" {commit_ts}` and `sluice resume`",
                )
            self._resolved.add(commit_ts)


def _outcome(relay: RelayLog, pump: str, commit_ts: int, start_ts: int) -> str:
    known = relay.known_pumps.load().late.get(commit_ts)
    if known is not None:
        return known.outcome
    found = LateCommit(start_ts, pump, LANDED if _is_there(relay, commit_ts) else MISSED)

    def with_it(seen: PumpsDocument) -> PumpsDocument:
        return replace(seen, late={commit_ts: found} | dict(seen.late))

    return relay.known_pumps.change(with_it).late[commit_ts].outcome


def _is_there(relay: RelayLog, commit_ts: int) -> bool:
    """Return whether a commit is landed, or lies before the relay log's begin."""
    window = relay.find(commit_ts - 1)
    if window is not None and window.lo < commit_ts <= window.hi:
        commits = relay.read([window]).column("commit_ts")
        return bool(pc.any(pc.equal(commits, commit_ts)).as_py())
    began_at = relay.began_at()
    return began_at is None or commit_ts <= began_at
