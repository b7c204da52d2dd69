"""A run of a bootstrap's job: what is done downstream, in one process or in several.

What it has in common with other copies stands in `sluice.etl.copy.copy_run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace

from sluice.etl.copy.bootstrap_summary import BootstrapSummary, saved_plan
from sluice.etl.copy.copy_run import CopyJob, CopyProgressCounts, CopyTarget
from sluice.etl.copy.plan import CopyPlan
from sluice.etl.copy.row_counts import compare_with_tidb, rows_by_table
from sluice.etl.copy.sources import BootstrapSpec
from sluice.etl.copy.spark_loads import MakeLoads
from sluice.etl.downstream import Checkpoint
from sluice.relay.jobs import CANCELLED, DONE, PAUSE, PAUSED, Job, JobError, JobRun, StopRequested

__all__ = ["BootstrapRun", "BootstrapSummary", "CopyProgressCounts"]


class BootstrapRun(CopyJob):
    """A run of a bootstrap's job: `prepare`, `copy`, `finish`, or all three as `whole`.

    `copy` may be done by several processes. Each raises LeaseLostError, CopyError for what hinders
    it, DdlError, DownstreamError, and what `make` raises.
    """

    def __init__(
        self,
        place: CopyTarget,
        job: Job,
        run: JobRun,
        on_progress: Callable[[CopyProgressCounts], None],
    ) -> None:
        what = CopyPlan.from_json(saved_plan(job)), BootstrapSpec.from_json(job.spec.asked)
        super().__init__(place, what, job, run, on_progress)

    def whole(self, make: MakeLoads) -> BootstrapSummary:
        """Copy everything in this process, up to where it is ordered to stop."""
        try:
            self._prepare()
            self._copy(make, 0, 1)
            return self._finish()
        except StopRequested:
            return self._stop()
        finally:
            self._session.close()

    def prepare(self) -> bool:
        """Make databases and tables. False if the run was ordered to stop."""
        try:
            self._prepare()
        except StopRequested:
            return False
        finally:
            self._session.close()
        return True

    def copy(self, make: MakeLoads, share: int, shares: int) -> CopyProgressCounts:
        """Copy one share of the chunks, then what is left of the others, or stop as ordered."""
        try:
            self._set_activity("copying rows")
            self._session.connect()
            self._copy(make, share, shares)
        except StopRequested:
            pass
        finally:
            self._session.close()
        return self.progress

    def finish(self, make: MakeLoads) -> BootstrapSummary:
        """Copy what is left of the chunks, then all that comes after rows; or stop as ordered."""
        try:
            self._acquire_lock()
            self._copied.create(self._session)
            self._set_activity("looking at what is left")
            self._copy(make, 0, 1)
            return self._finish()
        except StopRequested:
            return self._stop()
        finally:
            self._session.close()

    # Ending

    def _first_checkpoint(self) -> Checkpoint:
        """Return the first row; it names this pipeline if that wrote to the replica that was lost.

        No other pipeline wrote that row.
        """
        checkpoint = super()._first_checkpoint()
        owned = self._settings.open_relay().ownership()
        if owned is None or owned.downstream != self._settings.downstream_name:
            return checkpoint
        return replace(checkpoint, owner=owned.pipeline)

    def _finish(self) -> BootstrapSummary:
        self._compare()
        self._complete()
        summary = self._summary(DONE)
        self._run.end(DONE, result=asdict(summary))
        self._copied.forget(self._session)
        self._session.commit()
        return summary

    def _compare(self) -> None:
        """Compare with TiDB before the checkpoint is written.

        Raises CopyError if the source isn't whole.
        """
        if self._copied.has_ended(self._session):
            return
        there = self._copied.rows(self._session)
        self._session.commit()
        copied = rows_by_table(self.plan, there)
        source, upstream = self._asked.source, self._settings.upstream
        if why := compare_with_tidb(self.plan, source, upstream, copied, self._set_activity):
            self.tables.warnings.append(
                f"the rows that were copied could not be compared with TiDB's at {self.plan.ts}:"
                f" {why}. Compare both sides once replication has caught up: `sluice verify`"
            )

    def _stop(self) -> BootstrapSummary:
        """Do as was ordered."""
        self._session.rollback()
        if self._run.order == PAUSE:
            self._run.end(PAUSED)
            return self._summary(PAUSED)
        return self._cancel()

    def cancel(self) -> BootstrapSummary:
        """Cancel the copy: remove what it made downstream, except where another program wrote."""
        try:
            self._acquire_lock()
            self._copied.create(self._session)
            return self._cancel()
        finally:
            self._session.close()

    def _cancel(self) -> BootstrapSummary:
        if self._copied.has_ended(self._session):
            raise JobError(f"the job {self._job.id} has written its checkpoint already: it is done")
        self._session.begin()
        self._copied.give_up(self._session)
        self._session.commit()  # no process copies any more
        there = self._copied.rows(self._session)
        left = self.tables.take_back(self.tables.expected(there), self._run.doing)
        self._copied.forget(self._session)
        self._session.commit()
        summary = replace(self._summary(CANCELLED), rows_there=0, left=tuple(left))
        hint = (
            "look at these tables, and remove what isn't needed, before the next bootstrap begins"
            if left
            else ""
        )
        self._run.end(CANCELLED, message="; ".join(left), hint=hint, result=asdict(summary))
        return summary

    def _summary(self, state: str) -> BootstrapSummary:
        rows_there = sum(self._copied.rows(self._session).values())
        self._session.commit()
        progress = self.progress
        seconds = round(time.monotonic() - progress.began_s, 3)
        return BootstrapSummary(
            self.plan.ts, len(self.plan.tables), progress.rows, rows_there, progress.bytes, seconds,
            tuple(self.tables.warnings), state,
        )  # fmt: skip
