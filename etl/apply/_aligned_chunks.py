"""Keeps appointments: with the checkpoint at exactly their timestamp, waits for the rows and has the sink write them.

What is promised to whom is in `sluice.relay.aligned_chunks`.
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
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import ReplicationRules, RouteError
from sluice.etl.downstream import ChunkResult
from sluice.etl.downstream.sinks import AcceptsChunks, AlignedChunkRows, ChunkLoad
from sluice.etl.downstream.sinks.sink import BeforeCommit
from sluice.relay import AlignedChunk, ChunkCancelled, ChunkReady, LoadFile, RelayCorruptError, RelayLog
from sluice.relay.aligned_chunks import REMOVED, Outcome
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

log = logging.getLogger("sluice.apply")

_POLL_S = 0.02
_IDLE_POLLS = 30
"""So many times longer than with changes behind it a job is waited for while there are none."""
_LATENESS_FACTORS, _MAX_WAIT_FACTORS = 3, 16
"""A chunk whose rows were late more often than that is waited for twice as long each time, at most so many times as
long: a job that reads slowly gets on, too.
"""
_MAX_ATTEMPTS = 3
"""So often a chunk is begun that fails for what may pass; then replication goes on without it."""


class AlignedChunkApplier:
    """Keeps the appointments of one run of applying. Raises what the sink raises, and relay errors."""

    def __init__(self, relay: RelayLog, rules: ReplicationRules, wait_ms: int) -> None:
        """`wait_ms`: how long changes wait for rows to be read, as long as they aren't late again and again."""
        self._relay = relay
        self._rules = rules
        self._wait_s = wait_ms / 1000
        self._attempts: tuple[int, int] = 0, 0
        self._late_counts: Counter[tuple[str, int]] = Counter()
        """how often each chunk of a job was"""

    def keep(
        self,
        appointment: AlignedChunk,
        sink: object,
        waiting_since: Callable[[], float | None],
        go_on: Callable[[], bool],
        confirm: BeforeCommit,
    ) -> None:
        """Do what an appointment asks for, if its rows come in time. `waiting_since`: since when (time.monotonic)
        changes are waiting behind it, None if there are none. `go_on`: whether to wait any longer; sleeps a little.
        """
        why = sink.why_not(appointment) if isinstance(sink, AcceptsChunks) else "the downstream is no database"
        if why or not isinstance(sink, AcceptsChunks):
            self._cancel(appointment, why)
            return
        outcome = self._await_outcome(appointment, waiting_since, go_on)
        if not isinstance(outcome, ChunkReady):
            if outcome is not None:
                log.info("appointment at %d: %s", appointment.at_ts, outcome.why)
            return
        result = sink.find_result(appointment) or self._write(appointment, outcome, sink, confirm)
        said = replace(result, examples=()).to_text()  # rows are in no log
        log.info("appointment at %d of job %s: %s", appointment.at_ts, appointment.job, said)

    def cancel_within(self, after_ts: int, through_ts: int) -> None:
        """Changes behind `after_ts` and through `through_ts` were begun by a process that didn't know of these."""
        for appointment in self._relay.aligned_chunks.agenda(after_ts + 1).pending:
            if appointment.at_ts < through_ts:
                self._cancel(appointment, f"changes through {through_ts} were begun before")

    def _cancel(self, appointment: AlignedChunk, why: str) -> None:
        self._relay.aligned_chunks.settle(appointment.at_ts, ChunkCancelled(why, "apply"))
        log.warning("appointment at %d of job %s: %s", appointment.at_ts, appointment.job, why)

    def _await_outcome(
        self, appointment: AlignedChunk, waiting_since: Callable[[], float | None], go_on: Callable[[], bool]
    ) -> Outcome | None:
        """The outcome; None if the run ends before there is one."""
        began = time.monotonic()
        chunk = appointment.job, appointment.number
        wait_s = self._wait_s * min(2 ** max(0, self._late_counts[chunk] - _LATENESS_FACTORS), _MAX_WAIT_FACTORS)
        while (outcome := self._relay.aligned_chunks.outcome(appointment.at_ts)) is None:
            if not self._relay.aligned_chunks.exists(appointment.at_ts):
                return REMOVED  # void and gone between two looks
            now, since = time.monotonic(), waiting_since()
            waited = 0.0 if since is None else now - max(began, since)
            if waited > wait_s or now - began > wait_s * _IDLE_POLLS:
                self._late_counts[chunk] += 1
                why = f"its rows were not there after {now - began:.1f} s at the checkpoint"
                return self._relay.aligned_chunks.settle(appointment.at_ts, ChunkCancelled(why, "apply"))
            if not go_on():
                return None
        self._late_counts.pop(chunk, None)
        return outcome

    def _write(
        self, appointment: AlignedChunk, ready: ChunkReady, sink: AcceptsChunks, confirm: BeforeCommit
    ) -> ChunkResult:
        try:
            table = Table.from_json(ready.table)
            for load in ready.loads:
                LoadLayout.from_json(load.layout)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            return sink.decline(appointment, f"what was read can't be understood: {error!r}", is_passing=False)
        why = self._changed(appointment, table, ready.defined_ts)
        if why:
            return sink.decline(appointment, why, is_passing=True)
        try:
            routed = self._routed(table)
            loads = list(self._loads(ready))
        except (_ChunkDeclined, RelayCorruptError) as error:
            return sink.decline(appointment, str(error), is_passing=isinstance(error, RelayCorruptError))
        at_ts, tries = self._attempts
        self._attempts = appointment.at_ts, tries + 1 if at_ts == appointment.at_ts else 1
        if self._attempts[1] > _MAX_ATTEMPTS:
            return sink.decline(appointment, f"it failed {_MAX_ATTEMPTS} times; the log says why", is_passing=True)
        columns = loads[0].layout.columns if loads else tuple(column.name for column in table.writable_columns)
        hexed = frozenset(name for load in loads for name in load.layout.hex)
        return sink.write_chunk(AlignedChunkRows(appointment, routed, loads, columns, hexed), confirm)

    def _changed(self, appointment: AlignedChunk, table: Table, defined_ts: int) -> str:
        """Why the rows may be those of another table than there is at the appointment; "" if they aren't."""
        if table.id != appointment.table_id:
            return f"rows of table id {table.id} were read for table id {appointment.table_id}"
        known_ts = defined_ts
        for window in self._relay.windows(defined_ts, appointment.at_ts) if defined_ts < appointment.at_ts else ():
            if window.lo > known_ts:
                break
            known_ts = window.hi
            for ddl in RecordedSchema.from_window(window).ddls:
                if defined_ts < ddl.commit_ts <= appointment.at_ts and table.id in ddl.effect.tables:
                    return f"DDL job {ddl.job_id} at commit_ts {ddl.commit_ts} changed the table"
        if known_ts < appointment.at_ts:
            return f"the relay log doesn't tell which DDL came after {known_ts}"
        return ""

    def _routed(self, table: Table) -> Table:
        """The table under its name downstream. Raises _Declined where it isn't there as it is upstream."""
        filters, schema, name = self._rules.filters, table.schema_name, table.name
        if not filters.wants_table(schema, name):
            raise _ChunkDeclined(f"{table.full_name} isn't replicated: [filter] leaves it out")
        if filters.ignored_row_kinds(schema, name) or filters.may_keep_rows(schema, name):
            raise _ChunkDeclined(
                f"{table.full_name} isn't downstream as it is upstream: [filter] leaves some changes out"
            )
        try:
            target = self._rules.routes.target(schema, name)
        except RouteError as error:
            raise _ChunkDeclined(str(error)) from None
        if target.is_merged:
            goal = full_name(target.schema, target.table)
            raise _ChunkDeclined(f"{table.full_name} is merged with other tables in {goal}")
        return table if target.route is None else replace(table, schema_name=target.schema, name=target.table)

    def _loads(self, ready: ChunkReady) -> Iterator[ChunkLoad]:
        for load in ready.loads:
            yield ChunkLoad(LoadLayout.from_json(load.layout), self._read(load), load.rows, load.warnings)

    def _read(self, load: LoadFile) -> bytes:
        """A file's content. Raises RelayCorruptError."""
        url = f"{self._relay.url}/{load.path}"
        try:
            data = self._relay.storage.read(load.path)
        except FileNotFoundError:
            raise RelayCorruptError(f"{url} is gone: is something deleting files?") from None
        if (len(data), google_crc32c.value(data)) != (load.bytes, load.crc32c):
            raise RelayCorruptError(f"{url} holds {len(data)} bytes of another content than was written")
        return data


class _ChunkDeclined(Signal):
    """The rows can't be written; the text says why."""
