"""Verify without end: compare changed rows a while later, and the whole database in some days.

It reads so slowly that users do not notice. Both sides are read at one timestamp, the downstream's
checkpoint, so a row that changes meanwhile doesn't look different. A difference is checked once
more, at a later checkpoint, before it is reported: a DDL, a job that brings rows or people who
write downstream may have been in between.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sluice.errors import SluiceError
from sluice.etl.copy.backfill import BackfillDownstream
from sluice.etl.copy.backfill.plan import MAX_KEYLESS_BYTES
from sluice.etl.copy.backfill.table_key import range_key
from sluice.etl.copy.backfill.throttle import ReadBudget
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.retry import RetryBackoff
from sluice.etl.settings import Settings
from sluice.etl.verify.changed_rows import ChangedTable, ChangeReader
from sluice.etl.verify.continuous_state import ContinuousState, ContinuousStateFile, PendingMismatch
from sluice.etl.verify.endpoint import Difference
from sluice.etl.verify.full_scan import FullScan, ScanRange
from sluice.etl.verify.live_rows import LiveRows, open_live_rows
from sluice.etl.verify.liveness import VerifierLiveness
from sluice.etl.verify.reapply.latest_rows import condition_of
from sluice.etl.verify.recheck import Recheck, SnapshotExpired
from sluice.relay.verification_log import CONTINUOUS, TableVerified, Verifications, VerifiedRun
from sluice.tidb import tso
from sluice.tidb.schema import Table

__all__ = ["ContinuousSummary", "ContinuousVerifier", "run_continuous"]

log = logging.getLogger("sluice.verify")

_KEYS_PER_QUERY = 500
"""The changed rows that are compared at a time."""
_MAX_PENDING_CHANGES = 100_000
"""The most changes read before their keys are compared."""
_SNAPSHOT_TTL_S = 15.0
"""Lifetime of snapshots; meanwhile servers keep old versions of changed rows."""
_PASS_INTERVAL_S = 1.0
_SNAPSHOT_TIMEOUT_S = 10.0
_MAX_BEHIND_MS = 3_600_000


@dataclass(slots=True)
class ContinuousSummary:
    """Counts and findings of a run.

    `rows`, `bytes`: of the upstream, that were compared; `keys`: changed rows among them;
    `differences`: those that were reported, the first ones; `open_rows`: how many rows are known to
    differ now.
    """

    seconds: float = 0.0
    passes: int = 0
    keys: int = 0
    rows: int = 0
    bytes: int = 0
    looked_at_again: int = 0
    open_rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for scripts."""
        return {
            "seconds": self.seconds,
            "passes": self.passes,
            "keys": self.keys,
            "rows": self.rows,
            "bytes": self.bytes,
            "looked_at_again": self.looked_at_again,
            "open_rows": self.open_rows,
            "differences": [one.to_json() for one in self.differences],
            "notes": list(self.notes),
        }


def run_continuous(
    settings: Settings,
    run_seconds: float | None = None,
    stop: threading.Event | None = None,
    on_look: Callable[[ContinuousSummary], None] = lambda summary: None,
) -> ContinuousSummary:
    """Verify for `run_seconds`, or until `stop` is set.

    Transient errors are waited out. `on_look` is called with the summary so far, after each pass.
    Raises CopyError without a TiDB to read, ClaimLostError if another process does it now, PDError,
    TiKVError, relay errors.
    """
    ended = stop or threading.Event()
    with UpstreamCatalog.connect(settings) as upstream:
        work = ContinuousVerifier(settings, upstream, ended, on_look=on_look)
        try:
            work.run(run_seconds)
        finally:
            work.close()
        return work.current_summary()


class ContinuousVerifier:
    """One process of it."""

    def __init__(
        self, settings: Settings, upstream: UpstreamCatalog, stop: threading.Event,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_look: Callable[[ContinuousSummary], None] = lambda summary: None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._upstream = upstream
        self._stop = stop
        self._now_ms = now_ms
        self._on_look = on_look
        self._relay = settings.open_relay()
        self._claim = self._relay.claim(
            f"verify-{name}" if (name := settings.relay.pipeline) else "verify"
        )
        self._downstream = BackfillDownstream(settings, upstream.cluster_id)
        self._file = ContinuousStateFile(self._relay.place)
        self._state: ContinuousState = self._file.load()
        limits = settings.verify
        self._budget = ReadBudget(limits.rows_per_second, limits.megabytes_per_second * 1_000_000)
        self._reader = ChangeReader(
            self._relay, settings.filters, settings.ignored_ts, self._reading
        )
        self._full_scan = FullScan(self._state.sweep, limits.days, upstream)
        self._recheck = Recheck(self._state, self._budget)
        self._standing = VerifierLiveness(Verifications(self._relay), now_ms)
        self._names: frozenset[str] | None = None
        self._retrying = RetryBackoff(log, "continuous verification")
        self._changed: dict[int, ChangedTable] = {}
        self._waiting: deque[tuple[int, str]] = deque()
        self._gathered_ts = self._state.changes_ts
        self._began_ms = now_ms()
        self._job = f"continuous-{self._began_ms}"
        self.summary = ContinuousSummary()

    def close(self) -> None:
        """End the connection."""
        self._downstream.close()

    def run(self, run_seconds: float | None) -> None:
        """See `run_continuous`."""
        began = time.monotonic()

        def is_over() -> bool:
            return self._stop.is_set() or (
                run_seconds is not None and time.monotonic() - began >= run_seconds
            )

        while not is_over():
            self._claim.check()
            try:
                self.once()
                self._retrying.over()
                pause_s = _PASS_INTERVAL_S
            except SluiceError as error:
                self._standing.failed(str(error))
                if not error.transient:
                    raise
                pause_s = self._retrying.after(error)
            self.summary.seconds = round(time.monotonic() - began, 3)
            if self._recheck.has_news():
                self.note(self.summary.seconds)
            self._on_look(self.current_summary())
            self._budget.wait(is_over)
            left_s = (
                run_seconds - (time.monotonic() - began) if run_seconds is not None else pause_s
            )
            self._stop.wait(max(0.0, min(pause_s, left_s)))
        self.summary.seconds = round(time.monotonic() - began, 3)
        self.note(self.summary.seconds)

    def is_idle(self) -> bool:
        """Return whether there is nothing to compare at the moment, at any checkpoint."""
        return not (
            self._changed
            or self._waiting
            or self._state.suspects
            or self._full_scan.is_due(self._now_ms())
        )

    def suspects(self) -> list[PendingMismatch]:
        """Return rows that differed when they were compared last."""
        return list(self._state.suspects)

    def current_summary(self) -> ContinuousSummary:
        """Return the summary so far."""
        summary, checks = self.summary, self._recheck
        summary.looked_at_again = checks.looked_at_again
        summary.rows = self._rows()
        summary.bytes = sum(size for _, _, size in checks.read.values())
        summary.open_rows = sum(one.rows for one in self._state.suspects if one.confirmed)
        summary.differences = checks.differences
        summary.notes += checks.notes
        checks.notes.clear()
        if self._full_scan.is_late(self._now_ms()):
            late = (
                f"the round through all takes longer than {self._settings.verify.days} days at this"
                " budget: see [verify] rows-per-second and megabytes-per-second"
            )
            summary.notes += [late] if late not in summary.notes else []
        return summary

    def once(self) -> None:
        """Compare what there is to compare at one checkpoint.

        Raises what a snapshot and both sides raise.
        """
        self._collect_changes()
        now_ms = self._now_ms()
        if not (
            self._changed
            or self._waiting
            or self._recheck.is_due(now_ms)
            or self._full_scan.is_due(now_ms)
        ):
            self._standing.mark_progress()
            return
        before = self._recheck.compared
        with open_live_rows(
            self._settings, self._upstream.cluster_id, self._upstream, _SNAPSHOT_TIMEOUT_S
        ) as rows:
            self.summary.passes += 1
            self._names = rows.names
            try:
                self._compare(rows)
            finally:
                self._save()
        if self._recheck.compared > before or self.is_idle():
            self._standing.mark_progress(self._rows())
        else:
            self._standing.failed("; ".join(self._recheck.problems.values()))

    # What was changed

    def _collect_changes(self) -> None:
        """Collect the rows that were changed, unless some are waiting already."""
        if self._changed or self._waiting:
            return
        checkpoint = self._downstream.checkpoint()
        if checkpoint is None:
            return
        until = min(
            checkpoint.commit_ts, self._upstream.now() - tso.span(self._settings.verify.delay_ms)
        )
        since = self._begin(until)
        if since >= until:
            return
        found = self._reader.collect(since, until, _MAX_PENDING_CHANGES)
        for lo, hi, why in found.unread:
            self._add_note(
                f"what was changed after {lo} through {hi} is left to the round through all: {why}"
            )
        self._changed, self._gathered_ts = dict(found.tables), found.until
        if not self._changed:
            self._state.changes_ts = found.until
            self._save()

    def _begin(self, until: int) -> int:
        """Return the commit ts behind which changes are compared."""
        state, first = self._state, self._relay.first()
        if not state.changes_ts:
            state.changes_ts = until
            self._save()
        behind = tso.ms_between(state.changes_ts, until)
        if first is None or state.changes_ts < first.lo or behind > _MAX_BEHIND_MS:
            self._add_note(
                f"what was changed after {tso.text(state.changes_ts)} through {tso.text(until)} is"
                " left to the round through all: verifying is too far behind"
            )
            state.changes_ts = until
        return state.changes_ts

    def _add_note(self, what: str) -> None:
        log.warning("%s", what)
        self.summary.notes.append(what)

    def _reading(self, changes: int, size: int) -> None:
        self._budget.used(changes, size)

    # At one checkpoint

    def _compare(self, rows: LiveRows) -> None:
        until = time.monotonic() + _SNAPSHOT_TTL_S
        with suppress(SnapshotExpired):
            for step in self._steps(rows):
                if self._stop.is_set() or time.monotonic() + self._budget.wait_s() > until:
                    return
                self._budget.wait(self._stop.is_set)
                step()

    def _steps(self, rows: LiveRows) -> Iterator[Callable[[], object]]:
        """Yield what there is to do, one step after the other.

        Each is done before the next is asked for.
        """
        mended = {i for repair in self._relay.aligned_chunks.repairs() for i in repair.tables}
        waits = {rows.tables[i].id for i in mended if i in rows.tables}
        tables = {i: table for i, table in rows.tables.items() if table.id not in waits}
        self._full_scan.merged = rows.merged
        yield from self._recheck.again(rows, tables, self._now_ms())
        for table_id in list(self._changed):
            table, changed = tables.get(table_id), self._changed.pop(table_id)
            if table is not None:
                conditions = self._conditions(table, rows.own[table_id], changed)
                self._waiting += [(table_id, condition) for condition in conditions]
        while self._waiting:
            table_id, condition = self._waiting[0]
            if table_id in tables:
                yield partial(self._recheck.first, rows, tables[table_id], condition)
            self._waiting.popleft()
        self._state.changes_ts = max(self._state.changes_ts, self._gathered_ts)
        while self._full_scan.is_due(self._now_ms()):
            stretch = self._full_scan.next(list({t.id: t for t in tables.values()}.values()), rows)
            if stretch is not None:
                yield partial(self._scan, rows, stretch)

    def _conditions(self, table: Table, own: Table, changed: ChangedTable) -> Iterator[str]:
        """Yield conditions (SQL) over the changed keys, some hundred keys each.

        "" for a small table without a key that ranges can be cut by. `own`: the one that was
        changed, of several that are compared as `table`.
        """
        if not range_key(table):
            if self._full_scan.bytes_of(table) <= MAX_KEYLESS_BYTES:
                yield ""
            return
        keys = changed.keys(own)
        for first in range(0, keys.num_rows if keys is not None else 0, _KEYS_PER_QUERY):
            assert keys is not None
            self.summary.keys += min(_KEYS_PER_QUERY, keys.num_rows - first)
            yield condition_of(own, keys.slice(first, _KEYS_PER_QUERY))

    def _scan(self, rows: LiveRows, stretch: ScanRange) -> None:
        read = self._recheck.first(rows, stretch.table, stretch.condition)
        self._full_scan.did(stretch, read)

    # What is known

    def _rows(self) -> int:
        return sum(rows for _, rows, _ in self._recheck.read.values())

    def _save(self) -> None:
        self._file.keep(self._state)

    def note(self, seconds: float) -> None:
        """Record what was compared, and what differs, in the log of verifications."""
        read, problems = self._recheck.read, self._recheck.problems
        tables = tuple(
            TableVerified(
                name,
                ts,
                self._now_ms(),
                rows,
                size,
                self._state.open_rows(name),
                CONTINUOUS,
                self._job,
                problems.get(name, ""),
            )
            for name in sorted({*read, *problems})
            for ts, rows, size in (read.get(name, (0, 0, 0)),)
        )
        if tables:
            run = VerifiedRun(
                self._job,
                max(one.ts for one in tables),
                self._began_ms,
                seconds,
                CONTINUOUS,
                tables,
            )
            Verifications(self._relay).note(run, self._names)
