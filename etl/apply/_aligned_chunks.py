"""Apply aligned chunks: wait with the checkpoint at exactly their TSO, then write their rows.

`sluice.relay.aligned_chunks` has the promises between applying and the job.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import google_crc32c

from sluice.errors import Signal
from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.masks import masks_of
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import ColumnRuleError, ReplicationRules, RouteError
from sluice.etl.downstream import ChunkResult
from sluice.etl.downstream.sinks import AcceptsChunks, AlignedChunkRows, ChunkLoad
from sluice.etl.downstream.sinks.sink import BeforeCommit
from sluice.relay import (
    AlignedChunk,
    ChunkCancelled,
    ChunkReady,
    LoadFile,
    RelayCorruptError,
    RelayLog,
)
from sluice.relay.aligned_chunks import REMOVED, Outcome
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

log = logging.getLogger("sluice.apply")

_IDLE_POLLS = 30
"""Factor by which applying waits longer for a job while no changes are waiting."""
_LATENESS_FACTORS, _MAX_WAIT_FACTORS = 3, 16
"""After this many late chunks of a job the wait doubles each time, up to this factor.

So a job that reads slowly makes progress, too. What its last chunks needed is kept for the next.
"""
_MOST_LATE = _LATENESS_FACTORS + _MAX_WAIT_FACTORS.bit_length() - 1
"""More late chunks of a job are not counted: the wait has its largest factor."""
_MAX_ATTEMPTS = 3
"""Attempts at a chunk that fails transiently; then replication continues without it."""


class AlignedChunkApplier:
    """Apply the aligned chunks of one run. Raises what the sink raises, and relay errors."""

    def __init__(self, relay: RelayLog, rules: ReplicationRules, wait_ms: int) -> None:
        """Let changes wait for a chunk's rows for `wait_ms`, longer if they are late repeatedly."""
        self._relay = relay
        self._rules = rules
        self._wait_s = wait_ms / 1000
        self._attempts: tuple[int, int] = 0, 0
        self._late_counts: Counter[str] = Counter()
        """Times that chunks of each job were late, less those that needed less than half the wait.
        """

    def apply(
        self,
        aligned_chunk: AlignedChunk,
        sink: object,
        waiting_since: Callable[[], float | None],
        should_continue: Callable[[], bool],
        confirm: BeforeCommit,
    ) -> None:
        """Write the chunk if its rows come in time.

        `waiting_since` returns the time.monotonic() since which changes wait behind the chunk, or
        None. `should_continue` sleeps a little and returns whether to wait longer.
        """
        why = (
            sink.why_not(aligned_chunk)
            if isinstance(sink, AcceptsChunks)
            else "the downstream is no database"
        )
        if why or not isinstance(sink, AcceptsChunks):
            self._cancel(aligned_chunk, why)
            return
        outcome = self._await_outcome(aligned_chunk, waiting_since, should_continue)
        if not isinstance(outcome, ChunkReady):
            if outcome is not None:
                log.info("aligned chunk at %d: %s", aligned_chunk.at_ts, outcome.why)
            return
        result = sink.find_result(aligned_chunk) or self._write(
            aligned_chunk, outcome, sink, confirm
        )
        text = replace(result, examples=()).to_text()  # no values of rows in logs
        log.info("aligned chunk at %d of job %s: %s", aligned_chunk.at_ts, aligned_chunk.job, text)

    def cancel_within(self, after_ts: int, through_ts: int) -> None:
        """Cancel chunks that the in-flight batch after `after_ts` through `through_ts` passed by.

        The process that began it didn't know of them.
        """
        for aligned_chunk in self._relay.aligned_chunks.agenda(after_ts + 1).pending:
            if aligned_chunk.at_ts < through_ts:
                self._cancel(aligned_chunk, f"changes through {through_ts} were begun before")

    def _cancel(self, aligned_chunk: AlignedChunk, why: str) -> None:
        self._relay.aligned_chunks.settle(aligned_chunk.at_ts, ChunkCancelled(why, "apply"))
        log.warning(
            "aligned chunk at %d of job %s: %s", aligned_chunk.at_ts, aligned_chunk.job, why
        )

    def _await_outcome(
        self,
        aligned_chunk: AlignedChunk,
        waiting_since: Callable[[], float | None],
        should_continue: Callable[[], bool],
    ) -> Outcome | None:
        """Return the chunk's outcome, None if the run ends before there is one."""
        began, waited = time.monotonic(), 0.0
        late = self._late_counts[aligned_chunk.job]
        wait_s = self._wait_s * 2 ** max(0, late - _LATENESS_FACTORS)
        while (outcome := self._relay.aligned_chunks.outcome(aligned_chunk.at_ts)) is None:
            if not self._relay.aligned_chunks.exists(aligned_chunk.at_ts):
                return REMOVED  # cancelled and removed between two polls
            now, since = time.monotonic(), waiting_since()
            waited = 0.0 if since is None else now - max(began, since)
            if waited > wait_s or now - began > wait_s * _IDLE_POLLS:
                self._late_counts[aligned_chunk.job] = min(late + 1, _MOST_LATE)
                why = f"its rows were not there after {now - began:.1f} s at the checkpoint"
                return self._relay.aligned_chunks.settle(
                    aligned_chunk.at_ts, ChunkCancelled(why, "apply")
                )
            if not should_continue():
                return None
        if late and waited < wait_s / 2:
            self._late_counts[aligned_chunk.job] = late - 1
        return outcome

    def _write(
        self,
        aligned_chunk: AlignedChunk,
        ready: ChunkReady,
        sink: AcceptsChunks,
        confirm: BeforeCommit,
    ) -> ChunkResult:
        try:
            table = Table.from_json(ready.table)
            for load in ready.loads:
                LoadLayout.from_json(load.layout)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return sink.decline(
                aligned_chunk, f"what was read can't be understood: {error!r}", is_passing=False
            )
        why = self._changed(aligned_chunk, table, ready.defined_ts)
        if why:
            return sink.decline(aligned_chunk, why, is_passing=True)
        try:
            routed = self._routed(table)
            if masks_of(routed) != dict(ready.masks):
                raise _ChunkDeclined(
                    f"{table.full_name}: the rules of the job mask columns otherwise than those of"
                    " the process that applies: [filter] has changed in between"
                )
            loads = list(self._loads(ready, routed))
        except (_ChunkDeclined, RelayCorruptError) as error:
            return sink.decline(
                aligned_chunk, str(error), is_passing=isinstance(error, RelayCorruptError)
            )
        at_ts, tries = self._attempts
        self._attempts = aligned_chunk.at_ts, tries + 1 if at_ts == aligned_chunk.at_ts else 1
        if self._attempts[1] > _MAX_ATTEMPTS:
            return sink.decline(
                aligned_chunk,
                f"it failed {_MAX_ATTEMPTS} times; the log has the reason",
                is_passing=True,
            )
        columns = (
            loads[0].layout.columns
            if loads
            else tuple(column.name for column in routed.writable_columns)
        )
        hexed = frozenset(name for load in loads for name in load.layout.hex)
        return sink.write_chunk(
            AlignedChunkRows(aligned_chunk, routed, loads, columns, hexed), confirm
        )

    def _changed(self, aligned_chunk: AlignedChunk, table: Table, defined_ts: int) -> str:
        """Return why the rows may have another table definition than at the chunk's TSO, or ""."""
        if table.id != aligned_chunk.table_id:
            return f"rows of table id {table.id} were read for table id {aligned_chunk.table_id}"
        known_ts = defined_ts
        for window in (
            self._relay.windows(defined_ts, aligned_chunk.at_ts)
            if defined_ts < aligned_chunk.at_ts
            else ()
        ):
            if window.lo > known_ts:
                break
            known_ts = window.hi
            for ddl in RecordedSchema.from_window(window).ddls:
                if (
                    defined_ts < ddl.commit_ts <= aligned_chunk.at_ts
                    and table.id in ddl.effect.tables
                ):
                    return f"DDL job {ddl.job_id} at commit_ts {ddl.commit_ts} changed the table"
        if known_ts < aligned_chunk.at_ts:
            return f"the relay log doesn't have the DDL after {known_ts}"
        return ""

    def _routed(self, table: Table) -> Table:
        """Return the table under its downstream name, without columns that rules leave out.

        Raises _ChunkDeclined if it isn't a replica.
        """
        filters, schema, name = self._rules.filters, table.schema_name, table.name
        if not filters.wants_table(schema, name):
            raise _ChunkDeclined(f"{table.full_name} isn't replicated: [filter] excludes it")
        if filters.leaves_changes_out(schema, name):
            raise _ChunkDeclined(
                f"{table.full_name} isn't downstream as it is upstream: [filter] excludes some"
                " changes"
            )
        try:
            shaped = self._rules.shaped(table)
            target = self._rules.routes.target(schema, name)
        except (ColumnRuleError, RouteError) as error:
            raise _ChunkDeclined(str(error)) from None
        if target.mixes_rows:
            goal = full_name(target.schema, target.table)
            raise _ChunkDeclined(f"{table.full_name} is merged with other tables in {goal}")
        return (
            shaped
            if target.route is None
            else replace(shaped, schema_name=target.schema, name=target.table)
        )

    def _loads(self, ready: ChunkReady, table: Table) -> Iterator[ChunkLoad]:
        """Yield the rows' texts. Raises _ChunkDeclined if they have other columns than `table`."""
        known = {column.name for column in table.stored_columns}
        wanted = {column.name for column in table.writable_columns}
        for load in ready.loads:
            layout = LoadLayout.from_json(load.layout)
            if odd := sorted({*layout.columns} - known | wanted - {*layout.columns}):
                raise _ChunkDeclined(
                    f"{table.full_name}: the rules of the job leave other columns out than those of"
                    f" the process that applies ({', '.join(odd)}): [filter] has changed in between"
                )
            yield ChunkLoad(layout, self._read(load), load.rows, load.warnings)

    def _read(self, load: LoadFile) -> bytes:
        """Return a file's content. Raises RelayCorruptError."""
        url = f"{self._relay.url}/{load.path}"
        try:
            data = self._relay.storage.read(load.path)
        except FileNotFoundError:
            raise RelayCorruptError(f"{url} is gone: is something deleting files?") from None
        if (len(data), google_crc32c.value(data)) != (load.bytes, load.crc32c):
            raise RelayCorruptError(
                f"{url} holds {len(data)} bytes of another content than was written"
            )
        return data


class _ChunkDeclined(Signal):
    """The rows can't be written, for the reason in its text."""
