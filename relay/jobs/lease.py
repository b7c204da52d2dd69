"""A job while a process runs it: heartbeat, progress, and orders.

The job's state log (`sluice.relay.jobs.state_log`) shows whether the process still runs the job:
another one that has taken it has made an entry. Whatever must be done exactly once never rests on
this, as another process may take the job between a check and the act. It rests on the downstream's
transactions.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from sluice.errors import SluiceError, ours
from sluice.relay.errors import RelayError
from sluice.relay.jobs.errors import LeaseLostError, StopRequested
from sluice.relay.jobs.job_files import JobFiles
from sluice.relay.jobs.pace import Pace
from sluice.relay.jobs.progress import JobCounts, TableProgress, WorkerProgress
from sluice.relay.jobs.runner import Runner
from sluice.relay.jobs.state_log import (
    ACTIVE_STATES,
    CANCELLED,
    CANCELLING,
    DONE,
    FAILED,
    FINAL_STATES,
    PAUSED,
    PAUSING,
    StateEntry,
)

__all__ = ["CANCEL", "PAUSE", "JobRun"]

log = logging.getLogger("sluice.jobs")

HEARTBEAT_INTERVAL_S = 1.0
"""How often a process sends a heartbeat and looks for orders."""
PAUSE, CANCEL = "pause", "cancel"


class JobRun:
    """One process's part in a run of a job; made by `Job.run` or `Job.join`, used as a context.

    Left by an error, the job has failed with its message; left by Ctrl-C or Airflow's time-out, it
    is paused. Left otherwise without `end`, it isn't over, and the next process of the group goes
    on with it. Where another process has taken the job meanwhile, any error becomes the cause of a
    LeaseLostError: a process that stood still finds its files gone or its sessions ended, as the
    other one was entitled to do.
    """

    def __init__(self, ledger: JobFiles, entry: StateEntry, runner: Runner) -> None:
        self._files = ledger
        self._entry = entry
        self.number = entry.run
        self._member = WorkerProgress(runner)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._pace = Pace()
        self._thread = threading.Thread(target=self._beat, name="job heartbeat", daemon=True)

    # What is heard

    @property
    def order(self) -> str | None:
        """Return PAUSE or CANCEL if that was ordered, as of at most a moment ago.

        The process does so at its next border.
        """
        return {PAUSING: PAUSE, CANCELLING: CANCEL}.get(self._entry.state)

    def check(self) -> None:
        """Check that this process still runs the job.

        Raises LeaseLostError if another process runs it, or one of the same group has ended it, as
        of at most a moment ago.
        """
        self._check_taker()
        if self._entry.state not in ACTIVE_STATES:
            reason = f": {self._entry.message}" if self._entry.message else ""
            raise LeaseLostError(f"the job {self._files.id} is {self._entry.state}{reason}")

    def should_continue(self) -> bool:
        """Return whether nothing was ordered. Raises LeaseLostError as `check`."""
        self.check()
        return self.order is None

    def check_order(self) -> None:
        """Raise StopRequested if the job is to pause or to be cancelled.

        Raises LeaseLostError as `check`.
        """
        self.check()
        order = self.order
        if order is not None:
            raise StopRequested(order)

    def _check_taker(self) -> None:
        entry = self._entry
        if entry.run == self.number:
            return
        what = f"is run by {entry.runner} now"
        if entry.state not in ACTIVE_STATES:
            what = f"was taken over by {entry.runner}, and is {entry.state}"
        raise LeaseLostError(f"the job {self._files.id} {what}")

    @property
    def is_lost(self) -> bool:
        """Return whether `check` raises."""
        return self._entry.run != self.number or self._entry.state not in ACTIVE_STATES

    @property
    def is_over(self) -> bool:
        """Return whether the job is, as of at most a moment ago: nothing more is to come of it."""
        return self._entry.state in FINAL_STATES

    def look(self) -> None:
        """Refresh what `order` and `check` return. Raises RelayError, OSError."""
        self._entry = self._files.history.load()

    # Reports

    def set_totals(self, tables: Mapping[str, TableProgress]) -> None:
        """Record, by table, the totals of this run and what was done before it.

        Once a run; of a group the first process does so.
        """
        self._files.write_totals(self.number, tables)

    def doing(self, what: str) -> None:
        """Set the present activity, a few words for people."""
        with self._lock:
            self._member = replace(self._member, doing=what)

    def expect(self, work: int) -> None:
        """Announce the next step's work, in bytes, if it isn't like the ones before."""
        with self._lock:
            self._pace.expect(work)

    def did(self, table: str, done: JobCounts) -> None:
        """Add to what this process has done of a table."""
        with self._lock:
            tables = {
                **self._member.tables,
                table: self._member.tables.get(table, JobCounts()) + done,
            }
            self._member = replace(self._member, tables=tables)

    def end(
        self,
        state: str,
        *,
        message: str = "",
        hint: str = "",
        result: Mapping[str, Any] | None = None,
    ) -> None:
        """Record durably how the run ends: DONE, CANCELLED, PAUSED, FAILED.

        Raises LeaseLostError, and nothing is written then; RelayError, OSError.
        """
        assert state in (DONE, CANCELLED, PAUSED, FAILED)

        def ended(newest: StateEntry) -> StateEntry:
            self._entry = newest
            self.check()
            return newest.then(
                state, str(self._member.runner), message=message, hint=hint, result=result
            )

        self._entry = self._files.history.change(ended)
        self._files.settle(self._entry)

    def __enter__(self) -> Self:
        self._note()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        try:
            self._log_failure(error)
            with self._lock:
                self._member = replace(self._member, left=True)
            self._note()
        except (SluiceError, OSError) as trouble:
            log.warning("cannot record the outcome of the job %s: %s", self._files.id, trouble)
        if isinstance(error, Exception):
            self._report_taken(error)

    def _report_taken(self, error: Exception) -> None:
        with contextlib.suppress(RelayError, OSError):  # then what is known of a moment ago counts
            self.look()
        try:
            self._check_taker()
        except LeaseLostError as lost:
            raise lost from error

    def _log_failure(self, error: BaseException | None) -> None:
        if (
            self._entry.state not in ACTIVE_STATES
            or self._entry.run != self.number
            or isinstance(error, LeaseLostError)
        ):
            return
        if error is not None and not isinstance(error, Exception):
            self.end(PAUSED, message="interrupted")
        elif error is not None:
            known = ours(error)
            self.end(FAILED, message=str(known), hint=known.hint)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_INTERVAL_S):
            try:
                self._note()
                self.look()
            except (RelayError, OSError) as error:
                log.warning(
                    "job %s: the heartbeat cannot be written, trying again: %s",
                    self._files.id,
                    error,
                )

    def _note(self) -> None:
        with self._lock:
            whole = sum(self._member.tables.values(), JobCounts())
            pace = self._pace.note(time.monotonic(), whole)
            member = self._member = replace(
                self._member, beat=self._member.beat + 1, noted_ms=time.time_ns() // 1_000_000,
                **pace._asdict(),
            )  # fmt: skip
        self._files.write_member(self.number, member)
