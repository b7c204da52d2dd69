"""Execute steps downstream: changes and checkpoint in one transaction, DDL behind a marker.

One process at a time: `recover` ends the sessions of the one before
(`sluice.etl.downstream._writer_lock`) and puts a token of its own into the checkpoint row
(`_fenced_checkpoint`), which every transaction locks and compares before it commits, and every
other statement before it runs. A DDL statement commits by itself: `_idempotent_ddl`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from sluice.etl.changes.rules import Filter, ReplicationRules, rules_digest, skip_reason
from sluice.etl.changes.steps import (
    CommitDetail,
    DropUniqueness,
    ScopedDdl,
    Step,
    surviving_rows_of,
)
from sluice.etl.downstream import (
    Blocked,
    Checkpoint,
    CheckpointMovedError,
    CheckpointTable,
    ChunkResult,
    ChunkResults,
    DownstreamError,
    InFlight,
    MySQLSession,
)
from sluice.etl.downstream.ddl import DdlExecutor, drop_uniqueness, hold_as_bytes
from sluice.etl.downstream.sinks._chunk_columns import ChunkDoesNotFit
from sluice.etl.downstream.sinks._coalesce import coalesce_small_steps
from sluice.etl.downstream.sinks._drainer_progress import advance_past_ddl
from sluice.etl.downstream.sinks._fenced_checkpoint import FencedCheckpoint, PipelinedCommit
from sluice.etl.downstream.sinks._idempotent_ddl import IdempotentDdl
from sluice.etl.downstream.sinks.chunk_writer import AlignedChunkRows, ChunkWriter
from sluice.etl.downstream.sinks.sink import (
    ApplyError,
    BeforeCommit,
    CheckpointGuard,
    ConflictGate,
    SinkResult,
    always_confirm,
)
from sluice.etl.downstream.sinks.write_executor import WriteExecutor
from sluice.etl.settings import Downstream, Upstream
from sluice.relay import AlignedChunk
from sluice.tidb import PDClient, tso

log = logging.getLogger("sluice.apply")

_LOCK_TIMEOUT_S = 60
_MAX_BLOCKED_CHARS = 4000  # characters of a refusal that are kept


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """The origin of the changes that a sink writes."""

    upstream: Upstream
    rules: str
    """Digest of the rules of their preparation, see `sluice.etl.changes.rules.rules_digest`.

    Behind it the ring of clusters, if there is one: it says which changes are in a batch.
    """

    @classmethod
    def from_upstream(
        cls, upstream: Upstream, rules: ReplicationRules, ring: Sequence[int] = ()
    ) -> Self:
        """Return the origin of changes from an upstream by these rules, in a `ring`."""
        digest = rules_digest(rules.filters, rules.routes)
        return cls(upstream, f"{digest} {' '.join(map(str, ring))}" if ring else digest)


class MySQLSink:
    """A database that speaks the MySQL protocol, written by one session.

    What lies between two commit steps is one transaction.
    """

    write_plan = "net"

    def __init__(
        self,
        session: MySQLSession,
        table: CheckpointTable,
        filters: Filter,
        keep_dropped_s: int = 24 * 3600,
        origin: ChangeOrigin | None = None,
    ) -> None:
        """Create the MySQL sink.

        `keep_dropped_s`: how long dropped tables are kept, in seconds of upstream time.
        """
        self._session = session
        self._row = FencedCheckpoint(session, table)
        self._results = ChunkResults(table.schema)
        self._origin = origin
        self._filters = filters
        self._writer = WriteExecutor(session)
        self._ddl = DdlExecutor(session, keep_dropped_s)
        self._idempotent_ddl = IdempotentDdl(session, self._row, self._ddl)
        self._confirm: BeforeCommit = always_confirm
        self._purged_at = 0

    @classmethod
    def open(cls, downstream: Downstream, origin: ChangeOrigin, cluster_id: int) -> MySQLSink:
        """Return the sink of the database that the settings name; nothing is connected yet."""
        session = MySQLSession(downstream)
        table = CheckpointTable.from_settings(session, downstream, cluster_id)
        return cls(session, table, Filter(), origin=origin)

    @property
    def address(self) -> str:
        return self._session.address

    def close(self) -> None:
        self._session.close()

    def set_guard(self, keeper: CheckpointGuard) -> None:
        self._row.guard = keeper

    def set_gate(self, gate: ConflictGate) -> None:
        self._row.gate = gate

    def recover(self) -> Checkpoint | None:
        found = self._row.take(_LOCK_TIMEOUT_S)
        if found is not None and found.in_flight is not None:
            self._check_rules(found, found.in_flight)
        if found is not None and found.needs_safe_mode and not found.safe_until:
            self._row.begin()
            self._row.save(replace(found, safe_until=self._fresh_ts()))
        return self._row.value

    def _check_rules(self, found: Checkpoint, in_flight: InFlight) -> None:
        """Check that changes which are in part downstream are written again under the same rules.

        Raises ApplyError.
        """
        log.warning(
            "changes between commit_ts %s and %s may be on %s already: writing them again,"
            " replacing what is there",
            found.commit_ts,
            in_flight.until,
            self.address,
        )
        if in_flight.rules not in ("", self._origin.rules if self._origin else ""):
            raise ApplyError(
                f"changes between commit_ts {found.commit_ts} and {in_flight.until} are on"
                f" {self.address} in part, written under another [filter], other [[route]]"
                " rules or another [downstream] ring.",
                hint=(
                    f"go on with the former rules until the checkpoint is past {in_flight.until}"
                    f" (`sluice run-until {in_flight.until}`), then change them"
                ),
            )

    def _fresh_ts(self) -> int:
        """Return a timestamp taken now: no commit of a Drainer that is gone is newer."""
        if self._origin is None:
            raise ApplyError(
                f"the checkpoint on {self.address} was left inconsistent; going on from there needs"
                " PD, and none is set"
            )
        upstream = self._origin.upstream
        with PDClient(upstream.pd_urls, tls=upstream.tls()) as pd:
            return pd.tso()

    def run(self, steps: Iterable[Step], confirm: BeforeCommit = always_confirm) -> SinkResult:
        written = SinkResult()
        self._confirm = confirm
        for together in coalesce_small_steps(steps):
            self._execute_all(together, written)
        self._purge(written)
        written.round_trip_s = self._session.round_trip_s
        return written

    def remember_blocked(self, refusal: str, decided: Sequence[int]) -> None:
        """Note in the checkpoint row that an in-flight batch was blocked, until operators decide.

        No process writes it again before that. Without an in-flight batch nothing of what was
        refused is downstream, and the next attempt checks it as this one did.
        """
        before = self._row.value
        if before is None or before.in_flight is None:
            return
        refused = Blocked(secrets.token_hex(4), refusal[:_MAX_BLOCKED_CHARS], tuple(decided))
        # then the next attempt finds out by itself
        with contextlib.suppress(DownstreamError, CheckpointMovedError):
            if self._row.in_transaction:
                self._row.roll_back()
            self._row.change(replace(before, in_flight=replace(before.in_flight, refused=refused)))

    def why_not(self, aligned_chunk: AlignedChunk) -> str:
        if self._row.gate is not None:
            return "both sides are written to: a copy would overwrite what is newer here"
        at = self._row.reached()
        if at.commit_ts != aligned_chunk.at_ts:
            return f"the checkpoint is at {at.commit_ts}"
        if not at.consistent or at.pending is not None or at.shared is not None:
            return f"what was committed after {at.commit_ts} may be on {self.address} in part"
        try:
            self._results.create(self._session)
        except DownstreamError as error:
            if error.transient:
                raise
            return f"what is done can't be noted: {error}"
        finally:
            self._row.release()
        return ""

    def find_result(self, aligned_chunk: AlignedChunk) -> ChunkResult | None:
        found = self._results.find(self._session, aligned_chunk.job, aligned_chunk.at_ts)
        self._row.release()
        return found

    def write_chunk(self, chunk: AlignedChunkRows, confirm: BeforeCommit) -> ChunkResult:
        asked, writer = chunk.aligned_chunk, ChunkWriter(self._session, chunk)
        began = time.perf_counter()

        def write() -> ChunkResult:
            result = writer.write()
            return replace(result, write_ms=round((time.perf_counter() - began) * 1000, 1))

        try:
            writer.prepare()
            self._row.begin()
            confirm(Step(CommitDetail(), asked.at_ts))
            return self._record_result(asked, write)
        except (ChunkDoesNotFit, DownstreamError) as error:
            if isinstance(error, DownstreamError) and error.transient:
                raise
            self._row.roll_back()
            return self.decline(asked, str(error), is_passing=False)
        finally:
            with contextlib.suppress(DownstreamError):
                writer.close()

    def decline(self, aligned_chunk: AlignedChunk, why: str, *, is_passing: bool) -> ChunkResult:
        self._row.begin()
        return self._record_result(
            aligned_chunk, lambda: ChunkResult(declined=why, is_passing=is_passing)
        )

    def _record_result(
        self, aligned_chunk: AlignedChunk, do: Callable[[], ChunkResult]
    ) -> ChunkResult:
        """Return the recorded result, or do the chunk and record its result; the row is locked."""
        found = self._results.find(self._session, aligned_chunk.job, aligned_chunk.at_ts)
        if found is not None:
            self._row.roll_back()
            return found
        result = do()
        self._results.note(self._session, aligned_chunk.job, aligned_chunk.at_ts, result)
        self._row.commit_here()
        return result

    def _execute_all(self, steps: Sequence[Step], written: SinkResult) -> None:
        """Execute a group of steps, as `coalesce_small_steps` makes them."""
        rows, commit = (
            (steps[:-1], steps[-1])
            if len(steps) > 1 and steps[-1].kind == "commit"
            else (steps, None)
        )
        if commit is not None and self._is_executed_whole(rows, commit, written):
            return
        if rows[0].kind in ("delete", "load"):
            self._row.begin()
            self._write(rows, written)
        else:
            self._execute(rows[0], written)
        if commit is not None:
            self._execute(commit, written)

    def _is_executed_whole(self, rows: Sequence[Step], commit: Step, written: SinkResult) -> bool:
        """Execute a small transaction in two round trips, one of them for the COMMIT.

        Return False, with nothing of it done, if that fails: then it goes step by step, which
        shows what is wrong.
        """
        if not self._row.can_pipeline:
            return False
        started = time.perf_counter()
        safe = self._in_safe_mode
        self._writer.follow(self._row.value)
        attempt = self._row.try_commit(
            self._writer.orders(rows, safe=safe), self._checkpoint_after(commit)
        )
        as_expected = self._writer.did(rows, attempt.answers, safe=safe)
        if not as_expected:
            self._row.roll_back()
        written.send_s += time.perf_counter() - started
        if as_expected:
            self._commit(commit, written, attempt)
        return as_expected

    def _execute(self, step: Step, written: SinkResult) -> None:
        match step.kind:
            case "commit":
                attempt = (
                    self._row.try_commit([], self._checkpoint_after(step))
                    if self._row.can_pipeline
                    else None
                )
                if attempt is None:
                    self._row.begin()
                self._commit(step, written, attempt)
            case "ddl":
                self._run_ddl(step, written)
            case "relax":
                self._drop_uniqueness(step, written)
            case "bytes":
                written.warn(hold_as_bytes(self._session, step))
            case _:
                raise ValueError(f"unknown step {step.kind!r}")

    def _write(self, steps: Sequence[Step], written: SinkResult) -> None:
        started = time.perf_counter()
        self._writer.follow(self._row.value)
        self._writer.write_all(steps, safe=self._in_safe_mode)
        written.send_s += time.perf_counter() - started

    @property
    def _in_safe_mode(self) -> bool:
        return self._row.reached().needs_safe_mode

    def advance_past_ddl(
        self, ddls: Sequence[ScopedDdl], missing: Callable[[MySQLSession, int], str]
    ) -> Checkpoint:
        before = self._row.value
        assert before is not None
        wanted = [ddl for ddl in ddls if skip_reason(ddl, self._filters) is None]
        after = advance_past_ddl(self._session, self._ddl, before, wanted, missing)
        if after != before:
            self._row.change(after)
        return after

    def _commit(
        self, step: Step, written: SinkResult, attempt: PipelinedCommit | None = None
    ) -> None:
        started = time.perf_counter()
        detail = step.detail_of(CommitDetail)
        confirm = functools.partial(
            self._confirm, step, begun=self._row.reached().in_flight is not None
        )
        if attempt is None:
            self._row.save(self._checkpoint_after(step), confirm, detail.channel)
        else:
            confirm()
            self._row.finish_commit(attempt, detail.channel)
        written.commit_s += time.perf_counter() - started
        written.commits += 1
        written.rows += step.rows
        written.changes += step.changes
        written.add_stages(detail.timings_ms)
        written.warn(detail.warnings)

    def _checkpoint_after(self, commit: Step) -> Checkpoint:
        """Return the checkpoint that a commit step takes the row to."""
        detail = commit.detail_of(CommitDetail)
        after = self._row.reached().at(commit.commit_ts, detail.schema_version)
        if not detail.rows_through:
            return after
        return after.before_rest_of(detail.rows_through, channels=detail.channels_through)

    def _run_ddl(self, step: Step, written: SinkResult) -> None:
        started = time.perf_counter()
        ddl = step.detail_of(ScopedDdl)
        confirm = functools.partial(self._confirm, step)
        before = self._row.reached()
        after = (
            before.before_rest_of(step.commit_ts, ddl.job_id)
            if ddl.has_companions
            else before.at(step.commit_ts)
        )
        if ddl.replaced_by is not None:
            self._idempotent_ddl.run_replaced(step, confirm)
            written.ddls += 1
        elif skip_reason(ddl, self._filters) is None:
            warnings = self._idempotent_ddl.run(step, confirm)
            for warning in warnings:
                log.warning("DDL job %s at commit_ts %s: %s", ddl.job_id, step.commit_ts, warning)
            log.info("DDL at commit_ts %s: %s", step.commit_ts, ddl.query[:500])
            written.warnings += [f"DDL job {ddl.job_id}: {warning}" for warning in warnings]
            written.ddls += 1
        else:
            self._row.begin()
            self._confirm(step)
        if not self._row.in_transaction:
            self._row.release()
            self._row.begin()
            if ddl.replaced_by == ():
                confirm()
        for load in surviving_rows_of(step):
            self._writer.write(load)
            written.rows += load.rows
        if self._row.value is None:
            self._row.save(after, confirm)
        else:
            self._row.save(after)
        written.ddl_s += time.perf_counter() - started

    def _drop_uniqueness(self, step: Step, written: SinkResult) -> None:
        """Relax unique keys; no transaction is open, as the step comes behind a commit.

        Another process that does the same at the same time does no harm.
        """
        names = drop_uniqueness(
            self._session, step.schema, step.table, step.detail_of(DropUniqueness).indexes
        )
        if names:
            written.warn(
                [
                    f"{step.full_name}: {', '.join(names)} may have values twice from here on: the"
                    " upstream is about to drop it"
                ]
            )

    def _purge(self, written: SinkResult) -> None:
        """Purge dropped tables that are kept no longer, once a minute of upstream time."""
        at = self._row.reached().commit_ts
        if tso.ms_between(self._purged_at, at) < 60_000 or self._row.in_transaction:
            return
        self._purged_at = at
        for name in self._ddl.recycle.purge(at):
            log.info("removed %s for good", name)
        self._row.release()
