"""Decide about rows that both sides changed, where two clusters replicate each other.

An incoming change loses against a younger commit of the same key on the downstream itself. The
other direction decides by the same order, so both sides end with the youngest. It is right because
of three things, which `docs/decisions` explains:

- The decision is made for the snapshot that the transaction writes from, with every commit up to it
  known. TiDB refuses the COMMIT if anything else changed one of the rows since (optimistic).
- The downstream's clock is past the change before it is written. So what its applications write
  over it later is younger.
- Ties within a millisecond go to the cluster with the larger id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.errors import Signal
from sluice.etl.apply._batch import WindowBatch
from sluice.etl.apply._reverse_log import LocalChanges
from sluice.etl.apply._touched_keys import Key, KeyReader, TouchedKeys
from sluice.etl.changes.mark_table import NUDGE_ROW, mark_statement
from sluice.etl.changes.planning import LOST_BOTH, LOST_NEW, LOST_OLD, LostChange
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.settings import LAST_COMMIT_WINS, Downstream, Settings
from sluice.relay import SKIP, RelayLog, is_named
from sluice.tidb import tso

log = logging.getLogger("sluice.apply")

_MAX_CLOCK_WAIT_MS = 60_000
_MAX_LISTED = 20


class ConflictsFound(Signal):
    """Changes of a batch have lost: it has to be prepared again without them."""


class Conflict(NamedTuple):
    """An incoming change that lost against the downstream's commit at `local_ts`."""

    lost: LostChange
    table: str
    key: Key
    local_ts: int

    def text(self) -> str:
        """Return it for people."""
        return (
            f"{self.table}, key {', '.join(map(str, self.key))}: the change at commit_ts"
            f" {self.lost.commit_ts} ({tso.time_text(self.lost.commit_ts)}) is older than the"
            f" downstream's own at {self.local_ts} ({tso.time_text(self.local_ts)})"
        )


@dataclass(slots=True)
class _Incoming:
    """What a batch would change; `first_ts`, `last_ts` (TSO): its first and last commit."""

    tables: list[TouchedKeys] = field(default_factory=list)
    cluster_id: int = 0
    first_ts: int = 0
    last_ts: int = 0


class _Nudge:
    """Commit something marked on the downstream, for the other direction to land at once."""

    def __init__(self, downstream: Downstream, channel: int) -> None:
        self._session = MySQLSession(downstream)
        self._statement = mark_statement(channel, NUDGE_ROW)

    def __call__(self) -> None:
        """Commit it. Raises DownstreamError."""
        try:
            if not self._session.is_connected:
                self._session.connect()
            self._session.query(self._statement)
            self._session.query("COMMIT")
        except DownstreamError:
            self._session.close()
            raise

    def close(self) -> None:
        self._session.close()


class ConflictGuard:
    """Find and decide the conflicts of one pipeline's batches. Used by the thread that writes."""

    def __init__(self, settings: Settings, relay: RelayLog) -> None:
        """Guard what `relay` has, against what ``[apply] reverse-relay`` has."""
        channel = settings.downstream.channel
        assert channel is not None
        self._reader = KeyReader(relay.url, settings.filters, channel)
        self._last_wins = settings.apply.conflicts == LAST_COMMIT_WINS
        self._ignored = settings.ignored_ts
        reverse = RelayLog.open(settings.apply.reverse_relay)
        self._local = LocalChanges(reverse, settings.filters, channel)
        self._nudge = _Nudge(settings.downstream, channel)
        self._found: dict[LostChange, Conflict] = {}
        self._incoming: tuple[WindowBatch, _Incoming] | None = None
        self._batch: WindowBatch | None = None
        self._stopped: Callable[[], bool] = lambda: False

    @property
    def last_wins(self) -> bool:
        """Return whether batches are prepared for the rule last-commit-wins."""
        return self._last_wins

    def close(self) -> None:
        self._nudge.close()

    def begin(self, batch: WindowBatch | None, stopped: Callable[[], bool]) -> None:
        """Set the batch of which the next transactions are; None: of none."""
        self._batch, self._stopped = batch, stopped

    def lost(self, after: int, through: int) -> tuple[LostChange, ...]:
        """Return what is known to have lost in (after, through] (TSO)."""
        return tuple(each for each in self._found if after < each.commit_ts <= through)

    def check(self, snapshot_ts: int) -> float:
        """Decide about the batch before a transaction that sees the downstream at `snapshot_ts`.

        Returns the seconds after which to begin it again, 0.0 if it may go on. Raises
        ConflictsFound, ApplyError where the rule is to stop, ReverseLogBehind.
        """
        if self._batch is None:
            return 0.0
        incoming = self._read_incoming(self._batch)
        if not incoming.tables:
            return 0.0
        behind_ms = tso.physical_ms(incoming.last_ts) + 1 - tso.physical_ms(snapshot_ts)
        if behind_ms > _MAX_CLOCK_WAIT_MS:
            raise ApplyError(
                f"the clock of the downstream's PD is {behind_ms / 1000:.0f} s behind the"
                f" upstream's: the change at commit_ts {incoming.last_ts} is later than its now, so"
                " which commit is the last isn't known",
                hint="set the clocks of both clusters by NTP",
            )
        if behind_ms > 0:
            return behind_ms / 1000
        self._local.read_through(incoming.first_ts, snapshot_ts, self._nudge, self._stopped)
        new = [one for one in self._conflicts(incoming) if one.lost not in self._found]
        if new and not self._last_wins:
            more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
            error = ApplyError(
                f"table {new[0].text()}{more}; both sides changed the row, and [apply] conflicts ="
                ' "stop"',
                hint=(
                    "leave the older transaction out: `sluice txn skip"
                    f" {new[0].lost.commit_ts}`; or decide all of them by [apply] conflicts ="
                    f' "{LAST_COMMIT_WINS}"'
                ),
            )
            error.commit_ts = new[0].lost.commit_ts
            raise error
        if new:
            self._found |= {one.lost: one for one in new}
            raise ConflictsFound
        return 0.0

    def written(self, batch: WindowBatch) -> list[Conflict]:
        """Return the conflicts of a batch that was written, and forget what is older."""
        done = [one for one in self._found.values() if one.lost.commit_ts <= batch.hi]
        for one in done:
            del self._found[one.lost]
        self._local.forget_before(batch.hi)
        self._batch = self._incoming = None
        for one in done[:_MAX_LISTED]:
            log.warning("conflict: %s", one.text())
        if len(done) > _MAX_LISTED:
            log.warning("conflicts: %d more in this batch", len(done) - _MAX_LISTED)
        return done

    def _read_incoming(self, batch: WindowBatch) -> _Incoming:
        if self._incoming is not None and self._incoming[0] is batch:
            return self._incoming[1]
        found = _Incoming()
        skipped = {one.named for one in batch.overrides if one.action == SKIP} | self._ignored
        for window in batch.windows:
            found.cluster_id = window.cluster_id
            after, through = max(window.lo, batch.after_ts), min(window.hi, batch.hi)
            for touched in self._reader.read(window, after, through):
                kept = _without_skipped(touched, skipped)
                if not kept.changes.num_rows:
                    continue
                found.tables.append(kept)
                commit_ts = kept.changes["commit_ts"].to_numpy()
                found.first_ts = min(found.first_ts or int(commit_ts[0]), int(commit_ts[0]))
                found.last_ts = max(found.last_ts, int(commit_ts[-1]))
                if self._last_wins:
                    _check_decidable(kept)
        self._incoming = batch, found
        return found

    def _conflicts(self, incoming: _Incoming) -> list[Conflict]:
        found: list[Conflict] = []
        local_wins_ties = self._local.cluster_id > incoming.cluster_id
        for touched in incoming.tables:
            newest = self._local.newest(touched.name)
            if newest:
                _check_same_key(touched, self._local)
                found += _lost_in(touched, newest, local_wins_ties=local_wins_ties)
        return found


def _lost_in(
    touched: TouchedKeys, newest: dict[Key, int], *, local_wins_ties: bool
) -> list[Conflict]:
    found = []
    names = ("commit_ts", "start_ts", "position")
    changes = zip(*(touched.changes[name].to_pylist() for name in names), strict=True)
    for change, old, new in zip(changes, *touched.row_keys(), strict=True):

        def newer(key: Key | None, commit_ts: int = change[0]) -> int:
            local = newest.get(key, 0) if key is not None else 0
            theirs, ours = tso.physical_ms(commit_ts), tso.physical_ms(local)
            return local if ours > theirs or (ours == theirs and local_wins_ties) else 0

        at_old, at_new = newer(old), newer(new)
        key, local_ts = (new, at_new) if at_new else (old, at_old)
        if not local_ts or key is None:
            continue
        if old is None or new is None or old == new or (at_old and at_new):
            part = LOST_BOTH
        else:
            part = LOST_NEW if at_new else LOST_OLD
        commit_ts, start_ts, position = change
        lost = LostChange(commit_ts, start_ts, position, part)
        found.append(Conflict(lost, touched.table.full_name, key, local_ts))
    return found


def _without_skipped(touched: TouchedKeys, skipped: frozenset[int] | set[int]) -> TouchedKeys:
    if not skipped:
        return touched
    pairs: Sequence[tuple[int, int]] = list(
        zip(*(touched.changes[name].to_pylist() for name in ("commit_ts", "start_ts")), strict=True)
    )
    kept = [not is_named(skipped, *pair) for pair in pairs]
    return TouchedKeys(touched.table, touched.changes.filter(kept))


def _check_decidable(touched: TouchedKeys) -> None:
    """Raise ApplyError for a table that last-commit-wins can't keep whole."""
    table = touched.table
    touched.comparable()
    if table.foreign_keys:
        raise ApplyError(
            f"table {table.full_name} has foreign keys, and [apply] conflicts ="
            f' "{LAST_COMMIT_WINS}" decides row by row: a row could lose the one that it'
            " refers to",
            hint="drop the foreign keys on both sides, or write the table on one side only, by two"
            " pipelines whose filters share no table",
        )


def _check_same_key(touched: TouchedKeys, local: LocalChanges) -> None:
    """Raise ApplyError if the table has another key on the two sides."""
    mine, theirs = (
        [(column.name.lower(), column.kind, column.collate) for column in lookup_key_columns(table)]
        for table in (touched.table, local.definition(touched.name))
    )
    if mine != theirs:
        raise ApplyError(
            f"table {touched.table.full_name} has another key upstream than downstream, so changes"
            " of one row look like changes of two",
            hint="give the table the same definition on both sides",
        )
