"""Executes prepared steps downstream: changes and checkpoint in one transaction, DDL behind a marker.

Crash-safe by construction: every commit moves the checkpoint row from the place it was locked at, so whatever happened to a
connection or a process, the row tells what is done. A DDL statement commits by itself; before it, its job and a fingerprint
of what it affects go into the checkpoint row. Found there later: fingerprint as before, it did not run; else it did.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from etl._steps import Step
from etl.checkpoint import Checkpoint, CheckpointTable, PendingDdl
from etl.ddl import DdlExecutor, skip_reason
from etl.filters import Filter
from etl.mysql import MySQLSession
from etl.settings import Settings
from etl.sinks._step_writer import StepWriter
from etl.sinks.sink import Written

log = logging.getLogger("sluice.apply")


class MySQLSink:
    """A database that speaks the MySQL protocol, written by one session: what lies between two commit steps is one transaction."""

    shape = "net"

    def __init__(
        self, session: MySQLSession, table: CheckpointTable, filters: Filter, keep_dropped_s: int = 24 * 3600
    ) -> None:
        self._session = session
        self._table = table
        self._filters = filters
        self._writer = StepWriter(session)
        self._ddl = DdlExecutor(session, keep_dropped_s)
        self._checkpoint: Checkpoint | None = None
        self._in_transaction = False
        self._purged_at = 0

    @classmethod
    def open(cls, settings: Settings, cluster_id: int) -> Self:
        """The settings' downstream; nothing is connected yet."""
        downstream = settings.downstream
        session = MySQLSession(downstream)
        table = CheckpointTable(session, cluster_id, downstream.checkpoint_schema, downstream.checkpoint_table)
        return cls(session, table, Filter())

    @property
    def address(self) -> str:
        return self._session.address

    def close(self) -> None:
        self._session.close()

    def recover(self) -> Checkpoint | None:
        self._in_transaction = False
        self._session.connect()
        self._table.create()
        self._checkpoint = self._table.load()
        self._session.query("COMMIT")
        return self._checkpoint

    def run(self, steps: Iterable[Step]) -> Written:
        written = Written()
        for step in steps:
            match step.kind:
                case "delete" | "load":
                    self._begin()
                    started = time.perf_counter()
                    self._writer.write(step)
                    written.send_s += time.perf_counter() - started
                case "commit":
                    self._begin()
                    self._commit(step, written)
                case "ddl":
                    self._run_ddl(step, written)
                case _:
                    raise ValueError(f"unknown step {step.kind!r}")
        self._purge(written)
        return written

    def _begin(self) -> None:
        if self._in_transaction:
            return
        self._session.begin()
        self._table.lock(self._checkpoint)
        self._in_transaction = True

    def _save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint row and commit."""
        self._table.save(checkpoint, first=self._checkpoint is None)
        self._session.commit()
        self._checkpoint = checkpoint
        self._in_transaction = False

    def _commit(self, step: Step, written: Written) -> None:
        started = time.perf_counter()
        before = self._checkpoint or Checkpoint(0)
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
        if reason is None:
            ran = False
            if self._ddl.is_transactional(ddl):
                self._begin()
            else:
                ran = self._marked(ddl, step.commit_ts)
            warnings = self._ddl.settle(ddl) if ran else self._ddl.execute(ddl)
            for warning in warnings:
                log.warning("DDL job %s at commit_ts %s: %s", ddl.get("job_id"), step.commit_ts, warning)
            log.info("DDL at commit_ts %s: %s", step.commit_ts, str(ddl.get("query"))[:500])
            written.warnings += [f"DDL job {ddl.get('job_id')}: {warning}" for warning in warnings]
            written.ddls += 1
        if not self._in_transaction:
            self._session.query("COMMIT")
            self._begin()
        self._save(after)
        written.ddl_s += time.perf_counter() - started

    def _marked(self, ddl: Mapping[str, Any], commit_ts: int) -> bool:
        """Whether the statement has run already; if not, leaves the marker that tells so next time."""
        fingerprint = self._ddl.fingerprint(ddl)
        self._session.query("COMMIT")
        pending = self._checkpoint.pending if self._checkpoint else None
        if pending is not None and (pending.job_id, pending.commit_ts) == (int(ddl.get("job_id") or 0), commit_ts):
            if pending.fingerprint != fingerprint:
                log.info("DDL job %s at commit_ts %s ran before the interruption", pending.job_id, commit_ts)
                return True
            return False
        marker = PendingDdl(int(ddl.get("job_id") or 0), commit_ts, fingerprint)
        before = (self._checkpoint or Checkpoint(0)).at(commit_ts - 1)
        self._begin()
        self._save(replace(before, pending=marker))
        return False

    def _purge(self, written: Written) -> None:
        """Once a minute of upstream time: dropped tables that are kept no longer."""
        at = self._checkpoint.commit_ts if self._checkpoint else 0
        if (at - self._purged_at) >> 18 < 60_000 or self._in_transaction:
            return
        self._purged_at = at
        for name in self._ddl.recycle.purge(at):
            log.info("removed %s for good", name)
        self._session.query("COMMIT")
