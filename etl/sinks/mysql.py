"""Executes prepared steps downstream: changes and checkpoint in one transaction, DDL behind a marker.

One process at a time: `recover` ends the sessions of the one before (`etl.downstream._writer_lock`) and puts a token of
its own into the checkpoint row, which every transaction locks and compares before it commits, and every other statement
before it runs.

Crash-safe by construction: every commit moves the checkpoint row from the place it was locked at, so whatever happened
to a connection or a process, the row tells what is done. A DDL statement commits by itself; before it, its job and a
fingerprint of what it affects go into the checkpoint row. Found there later: fingerprint as before, it did not run;
else it did.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from etl.ddl import DdlError, DdlExecutor, how_many_ran, not_replayable, relax
from etl.downstream import (
    Checkpoint,
    CheckpointMovedError,
    CheckpointTable,
    DownstreamError,
    MySQLSession,
    PendingDdl,
    Refusal,
)
from etl.formats.operator_sql import changes_rows_only
from etl.formats.sql_text import quote_name
from etl.rules import REPLACED_BY, Filter, rules_digest, skip_reason
from etl.settings import Settings, Upstream
from etl.shapes.kept_rows import kept_rows
from etl.sinks._text_as_bytes import hold_as_bytes
from etl.sinks.sink import ApplyError, Confirm, Keeper, Written, nothing_to_confirm
from etl.sinks.step_writer import StepWriter
from etl.steps import Step
from upstream import PDClient, tso
from upstream.ddl_actions import Action

log = logging.getLogger("sluice.apply")

_REPLACED = "replaced-"  # begins the marker of a DDL that an operator replaced
_STILL_RUNNING_S = 60
_REFUSAL = 4000  # characters of a refusal that are kept


class MySQLSink:
    """A database that speaks the MySQL protocol, written by one session: what lies between two commit steps is one
    transaction.
    """

    shape = "net"
    _upstream: Upstream | None = None
    _keeper: Keeper | None = None
    _process = ""
    _accepted: frozenset[str | None] | None = None
    """The processes that the row may name when this one looks again; None before it has looked the first time."""
    _rules = ""
    """Which rules changes are prepared by, see `etl.rules._digest`."""

    def __init__(
        self, session: MySQLSession, table: CheckpointTable, filters: Filter, keep_dropped_s: int = 24 * 3600
    ) -> None:
        self._session = session
        session.before_write = self._fence
        self._table = table
        self._lock = table.writer_lock()
        self._filters = filters
        self._writer = StepWriter(session)
        self._ddl = DdlExecutor(session, keep_dropped_s)
        self._checkpoint: Checkpoint | None = None
        self._confirm: Confirm = nothing_to_confirm
        self._in_transaction = self._locked = False
        self._purged_at = 0

    @classmethod
    def open(cls, settings: Settings, cluster_id: int) -> Self:
        """The settings' downstream; nothing is connected yet."""
        downstream = settings.downstream
        session = MySQLSession(downstream)
        table = CheckpointTable(session, cluster_id, downstream.checkpoint_schema, downstream.checkpoint_table)
        sink = cls(session, table, Filter())
        sink._upstream, sink._rules = settings.upstream, rules_digest(settings.filters, settings.routes)
        return sink

    @property
    def address(self) -> str:
        return self._session.address

    def close(self) -> None:
        self._session.close()

    def guard(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def recover(self) -> Checkpoint | None:
        self._in_transaction = self._locked = False
        self._session.connect()
        if self._keeper is not None and not self._table.is_there():
            self._keeper.admit(None)  # a mistyped name makes no schema
        self._table.create()
        if self._keeper is not None:  # before another pipeline's session would be ended
            self._keeper.admit(self._table.load())
            self._session.query("COMMIT")
        self._lock.seize(self._session, _STILL_RUNNING_S)
        self._claim()
        found = self._checkpoint
        if found is not None and found.flight is not None:
            log.warning(
                "changes between commit_ts %s and %s may be on %s already: writing them again, replacing what is there",
                found.commit_ts, found.flight.until, self.address,
            )  # fmt: skip
            if found.flight.rules not in ("", self._rules):
                raise ApplyError(
                    f"changes between commit_ts {found.commit_ts} and {found.flight.until} are on {self.address} in"
                    " part, written under another [filter] or other [[route]] rules. Way out: go on with the former"
                    f" rules until the checkpoint is past {found.flight.until} (`sluice run-until"
                    f" {found.flight.until}`), then change them"
                )
        if found is not None and found.needs_safe_mode and not found.safe_until:
            self._begin()
            self._save(replace(found, safe_until=self._fresh_ts()))
        return self._checkpoint

    def _claim(self) -> None:
        """Read the row and put a new token into it, so that nobody else commits any more. Raises CheckpointMovedError
        if somebody else has claimed it since this process did: who was taken over doesn't take over again.
        """
        found = self._table.load(settled=True)
        process = found.process if found else None
        if self._accepted is not None and process not in self._accepted:
            self._session.query("ROLLBACK")
            raise self._table.moved(found, self._checkpoint)
        if self._keeper is not None:
            self._keeper.admit(found)
        self._process = secrets.token_hex(8)
        self._accepted = (self._accepted or frozenset()) | {process, self._process}  # until it is known to be there
        self._checkpoint = found
        if found is None:
            self._session.query("COMMIT")
        else:
            self._save(found)

    def _fence(self) -> None:
        """Before a statement that writes. In a transaction the row is locked and compared before the commit."""
        if not self._in_transaction and self._process:
            self._table.lock(self._checkpoint)

    def _fresh_ts(self) -> int:
        """No commit that a Drainer has applied, now that it is gone, is newer than a timestamp taken now."""
        if self._upstream is None:
            raise ApplyError(
                f"the checkpoint on {self.address} was left inconsistent; going on from there needs PD, and none is set"
            )
        with PDClient(self._upstream.pd_urls, tls=self._upstream.tls()) as pd:
            return pd.tso()

    def run(self, steps: Iterable[Step], confirm: Confirm = nothing_to_confirm) -> Written:
        written = Written()
        self._confirm = confirm
        for step in steps:
            self._execute(step, written)
        self._purge(written)
        return written

    def remember(self, refusal: str, decided: Sequence[int]) -> None:
        """Note in the checkpoint row that a flight was refused, so that nobody writes it again before operators have
        decided. Without a flight nothing of what was refused is downstream, and the next attempt checks it as this one
        did.
        """
        before = self._checkpoint
        if before is None or before.flight is None:
            return
        with contextlib.suppress(DownstreamError, CheckpointMovedError):  # then the next attempt finds out by itself
            if self._in_transaction:
                self._session.rollback()
            self._in_transaction = self._locked = False
            self._begin()
            self._save(
                replace(
                    before,
                    flight=replace(
                        before.flight, refused=Refusal(secrets.token_hex(4), refusal[:_REFUSAL], tuple(decided))
                    ),
                )
            )

    def _execute(self, step: Step, written: Written) -> None:
        match step.kind:
            case "delete" | "load":
                self._begin()
                self._write(step, written)
            case "commit":
                self._begin()
                self._commit(step, written)
            case "ddl":
                self._run_ddl(step, written)
            case "relax":
                self._relax(step, written)
            case "bytes":
                written.warn(hold_as_bytes(self._session, step))
            case _:
                raise ValueError(f"unknown step {step.kind!r}")

    def _write(self, step: Step, written: Written) -> None:
        started = time.perf_counter()
        self._writer.follow(self._checkpoint)
        self._writer.write(step, safe=self._in_safe_mode)
        written.send_s += time.perf_counter() - started

    @property
    def _in_safe_mode(self) -> bool:
        return self._checkpoint is not None and self._checkpoint.needs_safe_mode

    def look_ahead(self, ddls: Sequence[Mapping[str, Any]], missing: Callable[[MySQLSession, int], str]) -> Checkpoint:
        before = self._checkpoint
        assert before is not None
        ddls = [ddl for ddl in ddls if skip_reason(ddl, self._filters) is None]
        least, most = how_many_ran(self._session, ddls)
        if before.pending is not None:
            least = 0  # one that was begun here: its marker tells
        if least and (wrong := missing(self._session, int(ddls[least - 1]["commit_ts"]))):
            if (ddl := not_replayable(ddls[:least])) is not None:
                raise DdlError(
                    f"DDL job {ddl.get('job_id')} at commit_ts {ddl['commit_ts']}: {str(ddl.get('query'))[:500]}: the"
                    f" tables on {self.address} look as if it had run, but not all that was committed before it is"
                    f" there: {wrong}. Did somebody else make this change there? Then undo it, and let the task go on."
                    ' If it was the Drainer, and the rows are right as they are, set "commitTS" in the checkpoint to'
                    " this commit_ts"
                )
            least = 0  # written again on the tables as they are; the DDL finds that it is done
        self._session.query("COMMIT")
        if most < len(ddls):
            before = replace(before, safe_until=min(before.safe_until, int(ddls[most]["commit_ts"]) - 1))
        if least:
            commit_ts = int(ddls[least - 1]["commit_ts"])
            log.info("everything through the DDL at commit_ts %s is downstream already, for it has run", commit_ts)
            for number, ddl in enumerate(ddls[:least]):
                if not _tables_of(ddl) & set().union(
                    *map(_tables_of, ddls[number + 1 : most])
                ):  # else it isn't as this one left it
                    self._ddl.settle_definitions(ddl)
            self._session.query("COMMIT")
            before = before.at(commit_ts, int(ddls[least - 1]["schema_version"]))
        elif most < len(ddls) and before.pending is None:
            before = before.at(before.commit_ts)
        for ddl in ddls[least:most]:
            self._check_repeatable(ddl)
        if before != self._checkpoint:
            self._begin()
            self._save(before)
        return before

    def _check_repeatable(self, ddl: Mapping[str, Any]) -> None:
        """Raises DdlError for a DDL that must not run again if it has run."""
        if int(ddl.get("type") or 0) == Action.EXCHANGE_PARTITION or _is_swap(ddl):
            raise DdlError(
                f"DDL job {ddl.get('job_id')} at commit_ts {ddl['commit_ts']}: {str(ddl.get('query'))[:500]}: the"
                " Drainer may have run it before it broke off, and a second time would undo it. If it has run, set"
                ' "commitTS" in the checkpoint to this commit_ts; if it hasn\'t, set "safe-until" in the'
                ' checkpoint\'s "sluice" to one less'
            )

    def _begin(self, *, lock: bool = True) -> None:
        """Have a transaction open, with the checkpoint row locked and found where it was left."""
        if not self._in_transaction:
            self._session.begin()
            self._in_transaction = True
        if lock and not self._locked:
            self._table.lock(self._checkpoint)
            self._locked = True

    def _save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint row and commit."""
        checkpoint = replace(
            checkpoint,
            process=self._process,
            owner=self._keeper.pipeline if self._keeper is not None else checkpoint.owner,
        )
        self._table.save(checkpoint, first=self._checkpoint is None)
        self._session.commit()
        self._checkpoint = checkpoint
        self._accepted = frozenset({self._process})
        self._in_transaction = self._locked = False

    def _commit(self, step: Step, written: Written) -> None:
        started = time.perf_counter()
        before = self._checkpoint or Checkpoint(0)
        self._confirm(step, begun=before.flight is not None)
        self._save(before.at(step.commit_ts, step.detail.get("schema_version")))
        written.commit_s += time.perf_counter() - started
        written.commits += 1
        written.rows += step.rows
        written.changes += step.changes
        written.add_stages(step.detail.get("timings_ms"))
        written.warn(step.detail.get("warnings"))

    def _run_ddl(self, step: Step, written: Written) -> None:
        started = time.perf_counter()
        ddl = step.detail
        after = (self._checkpoint or Checkpoint(0)).at(step.commit_ts)
        reason = skip_reason(ddl, self._filters)
        if REPLACED_BY in ddl:
            self._run_replaced(step)
            written.ddls += 1
        elif reason is None:
            ran = False
            if self._ddl.is_transactional(ddl):
                self._begin()
                self._confirm(step)
            else:
                ran = self._marked(step)
            warnings = self._ddl.settle(ddl) if ran else self._executed(ddl)
            for warning in warnings:
                log.warning("DDL job %s at commit_ts %s: %s", ddl.get("job_id"), step.commit_ts, warning)
            log.info("DDL at commit_ts %s: %s", step.commit_ts, str(ddl.get("query"))[:500])
            written.warnings += [f"DDL job {ddl.get('job_id')}: {warning}" for warning in warnings]
            written.ddls += 1
        else:
            self._begin()
            self._confirm(step)
        if not self._in_transaction:
            self._session.query("COMMIT")
            self._begin()
        for load in kept_rows(step):
            self._writer.write(load)
            written.rows += load.rows
        self._save(after)
        written.ddl_s += time.perf_counter() - started

    def _relax(self, step: Step, written: Written) -> None:
        """Nothing is open: it comes behind a commit. Whoever else does the same at the same time does no harm."""
        names = relax(self._session, step.schema, step.table, step.detail["indexes"])
        if names:
            written.warn(
                [
                    f"{step.full_name}: {', '.join(names)} may have values twice from here on: the upstream is about to"
                    " drop it"
                ]
            )

    def _marked(self, step: Step) -> bool:
        """Whether the statement has run already; if not, leaves the marker that tells so next time."""
        ddl, commit_ts = step.detail, step.commit_ts
        fingerprint = self._ddl.fingerprint(ddl)
        self._session.query("COMMIT")
        pending = self._checkpoint.pending if self._checkpoint else None
        if pending is not None and (pending.job_id, pending.commit_ts) == (int(ddl.get("job_id") or 0), commit_ts):
            if pending.fingerprint != fingerprint and not pending.fingerprint.startswith(_REPLACED):
                log.info("DDL job %s at commit_ts %s ran before the interruption", pending.job_id, commit_ts)
                return True
            self._begin()
            self._confirm(step)
            self._save(replace(self._checkpoint or Checkpoint(0), pending=pending))
            return False
        marker = PendingDdl(int(ddl.get("job_id") or 0), commit_ts, fingerprint)
        before = (self._checkpoint or Checkpoint(0)).at(commit_ts - 1)
        self._begin()
        self._confirm(step)
        self._save(replace(before, pending=marker))
        return False

    def _executed(self, ddl: Mapping[str, Any]) -> list[str]:
        """Execute a DDL. One that is refused has not run: the marker goes, or repairing by hand would look like the DDL
        itself.
        """
        try:
            return self._ddl.execute(ddl)
        except DdlError:
            with contextlib.suppress(DownstreamError):
                self._session.rollback()
                self._in_transaction = self._locked = False
                if self._checkpoint is not None and self._checkpoint.pending is not None:
                    self._begin()
                    self._save(replace(self._checkpoint, pending=None))
            raise

    def _run_replaced(self, step: Step) -> None:
        """Execute the operator's statements in place of a DDL, each once: the marker says which are done. A statement
        that doesn't commit by itself shares its transaction with the marker that is behind it.
        """
        ddl, commit_ts = step.detail, step.commit_ts
        statements = [str(statement) for statement in ddl[REPLACED_BY]]
        job = int(ddl.get("job_id") or 0)
        mark = f"{_REPLACED}{hashlib.sha256(json.dumps(statements).encode()).hexdigest()[:16]}"
        with contextlib.suppress(DownstreamError):  # it may not be there, or not yet
            self._session.query(f"USE {quote_name(str(ddl.get('schema_name') or ''))}")
        for number in range(self._replaced_so_far(ddl, commit_ts, mark, statements), len(statements)):
            fingerprint = self._ddl.fingerprint(ddl)
            self._session.query("COMMIT")
            before = (self._checkpoint or Checkpoint(0)).at(commit_ts - 1)
            self._begin()
            self._confirm(step)
            self._save(replace(before, pending=PendingDdl(job, commit_ts, f"{mark}:{number}:{fingerprint}")))
            self._begin()
            try:
                self._session.execute(statements[number])
            except DownstreamError as error:
                if error.transient:
                    raise
                raise DdlError(
                    f"DDL job {job} at commit_ts {commit_ts}: statement {number + 1} of the {len(statements)} that"
                    f" replace it: {error}. Statement: {statements[number][:2000]} Way out: decide anew: `sluice"
                    f" decisions remove {commit_ts}`, then `sluice ddl replace {commit_ts}` or `sluice ddl skip"
                    f" {commit_ts}`; what was executed before this statement stays"
                ) from error
            self._table.lock(self._checkpoint)  # a statement that commits by itself has let go of it
            self._save(replace(before, pending=PendingDdl(job, commit_ts, f"{mark}:{number + 1}:")))

    def _replaced_so_far(self, ddl: Mapping[str, Any], commit_ts: int, mark: str, statements: list[str]) -> int:
        """How many of the statements that replace a DDL were executed before an interruption."""
        pending = self._checkpoint.pending if self._checkpoint else None
        if pending is None or pending.commit_ts != commit_ts or not pending.fingerprint.startswith(f"{mark}:"):
            return 0
        number, seen = pending.fingerprint[len(mark) + 1 :].split(":")
        ran = bool(seen) and not changes_rows_only(statements[int(number)]) and seen != self._ddl.fingerprint(ddl)
        self._session.query("COMMIT")
        return int(number) + ran

    def _purge(self, written: Written) -> None:
        """Once a minute of upstream time: dropped tables that are kept no longer."""
        at = self._checkpoint.commit_ts if self._checkpoint else 0
        if tso.ms_between(self._purged_at, at) < 60_000 or self._in_transaction:
            return
        self._purged_at = at
        for name in self._ddl.recycle.purge(at):
            log.info("removed %s for good", name)
        self._session.query("COMMIT")


def _is_swap(ddl: Mapping[str, Any]) -> bool:
    """Whether a DDL gives a table the name that another one had before it."""
    before = {key: (table["schema_name"], table["name"]) for key, table in (ddl.get("before") or {}).items() if table}
    after = {
        key: (table["schema_name"], table["name"])
        for key, table in ((ddl.get("effect") or {}).get("tables") or {}).items()
        if table
    }
    return any(
        name == after.get(key) and other != key for other, name in before.items() for key in after if key in before
    )


def _tables_of(ddl: Mapping[str, Any]) -> set[str]:
    return set((ddl.get("effect") or {}).get("tables") or {})
