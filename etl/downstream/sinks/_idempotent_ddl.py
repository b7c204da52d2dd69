"""DDL statements that run once, though they commit by themselves.

Before a statement its job and a fingerprint of what it affects go into the checkpoint row: the
marker. Found there later: fingerprint as before, it did not run; else it did.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace

from sluice.etl.changes.formats.sql_scripts import changes_rows_only
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.steps import ScopedDdl, Step
from sluice.etl.downstream import DownstreamError, MySQLSession, PendingDdl
from sluice.etl.downstream.ddl import DdlError, DdlExecutor
from sluice.etl.downstream.sinks._fenced_checkpoint import FencedCheckpoint

log = logging.getLogger("sluice.apply")

_REPLACED_PREFIX = "replaced-"  # begins the marker of a DDL that an operator replaced


class IdempotentDdl:
    """Execute DDL steps.

    What they leave to be committed shares its transaction with the checkpoint behind them.
    """

    def __init__(self, session: MySQLSession, row: FencedCheckpoint, executor: DdlExecutor) -> None:
        self._session = session
        self._row = row
        self._executor = executor

    def run(self, step: Step, confirm: Callable[[], None]) -> list[str]:
        """Execute a DDL, or see that it was executed before; its warnings.

        `confirm` is asked behind the row's lock, before anything is made durable. Raises DdlError,
        DownstreamError and CheckpointMovedError.
        """
        ddl = step.detail_of(ScopedDdl)
        if self._executor.is_transactional(ddl):
            self._row.begin()
            confirm()
        elif self._has_run(step, confirm):
            return self._executor.settle(ddl)
        return self._executed(ddl)

    def _has_run(self, step: Step, confirm: Callable[[], None]) -> bool:
        """Return whether the statement has run already; if not, leave the marker that shows it."""
        ddl = step.detail_of(ScopedDdl)
        commit_ts = step.commit_ts
        fingerprint = self._executor.fingerprint(ddl)
        self._row.release()
        now = self._row.reached()
        pending = now.pending
        if pending is not None and (pending.job_id, pending.commit_ts) == (ddl.job_id, commit_ts):
            if pending.fingerprint != fingerprint and not pending.fingerprint.startswith(
                _REPLACED_PREFIX
            ):
                log.info(
                    "DDL job %s at commit_ts %s ran before the interruption",
                    pending.job_id,
                    commit_ts,
                )
                return True
            self._row.change(replace(now, pending=pending), confirm)
            return False
        marker = PendingDdl(ddl.job_id, commit_ts, fingerprint)
        self._row.change(replace(now.at(commit_ts - 1), pending=marker), confirm)
        return False

    def _executed(self, ddl: ScopedDdl) -> list[str]:
        """Execute a DDL.

        One that is refused has not run: the marker goes, or repairing by hand would look like the
        DDL itself.
        """
        try:
            return self._executor.execute(ddl)
        except DdlError:
            with contextlib.suppress(DownstreamError):
                self._row.roll_back()
                if self._row.reached().pending is not None:
                    self._row.change(replace(self._row.reached(), pending=None))
            raise

    def run_replaced(self, step: Step, confirm: Callable[[], None]) -> None:
        """Execute the operator's statements in place of a DDL, each once.

        The marker shows which are done. A statement that doesn't commit by itself shares its
        transaction with the marker that is behind it. Raises as `run`.
        """
        ddl = step.detail_of(ScopedDdl)
        commit_ts = step.commit_ts
        statements = list(ddl.replaced_by or ())
        job = ddl.job_id
        mark = (
            f"{_REPLACED_PREFIX}{hashlib.sha256(json.dumps(statements).encode()).hexdigest()[:16]}"
        )
        with contextlib.suppress(DownstreamError):  # it may not be there, or not yet
            self._session.query(f"USE {quote_name(ddl.schema_name)}")
        for number in range(self._replaced_so_far(step, mark, statements), len(statements)):
            fingerprint = self._executor.fingerprint(ddl)
            self._row.release()
            before = self._row.reached().at(commit_ts - 1)
            begun = PendingDdl(job, commit_ts, f"{mark}:{number}:{fingerprint}")
            self._row.change(replace(before, pending=begun), confirm)
            self._row.begin()
            try:
                self._session.execute(statements[number])
            except DownstreamError as error:
                if error.transient:
                    raise
                raise DdlError(
                    f"DDL job {job} at commit_ts {commit_ts}: statement {number + 1} of the"
                    f" {len(statements)} that replace it: {error}. Statement:"
                    f" {statements[number][:2000]}.",
                    hint=(
                        f"decide again: `sluice overrides remove {commit_ts}`, then `sluice ddl"
                        f" replace {commit_ts}` or `sluice ddl skip {commit_ts}`; what was executed"
                        " before this statement stays"
                    ),
                ) from error
            self._row.check()  # a statement that commits by itself has let go of it
            self._row.save(
                replace(before, pending=PendingDdl(job, commit_ts, f"{mark}:{number + 1}:"))
            )

    def _replaced_so_far(self, step: Step, mark: str, statements: list[str]) -> int:
        """Return how many statements that replace a DDL were executed before an interruption."""
        pending = self._row.reached().pending
        if (
            pending is None
            or pending.commit_ts != step.commit_ts
            or not pending.fingerprint.startswith(f"{mark}:")
        ):
            return 0
        number, seen = pending.fingerprint[len(mark) + 1 :].split(":")
        ran = (
            bool(seen)
            and not changes_rows_only(statements[int(number)])
            and seen != self._executor.fingerprint(step.detail_of(ScopedDdl))
        )
        self._row.release()
        return int(number) + ran
