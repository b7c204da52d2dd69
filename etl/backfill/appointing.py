"""The job's side of appointments (`relay.appointments`): made a little ahead of PD's clock, and followed until it
is certain what became of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from etl.backfill.downstream_side import DownstreamSide
from etl.backfill.errors import BackfillError
from etl.downstream.chunk_results import ChunkResult
from relay.appointments import Appointment, AppointmentExistsError, Appointments, Mending, Ready, Void
from relay.jobs import Run
from upstream import tso

log = logging.getLogger("sluice.backfill")

_AHEAD_MS = 300
_AHEAD_AT_MOST_MS = 20_000
_POLL_S = 0.02
_SLOW_POLL_S = 0.2
_SLOW_AFTER_S = 2.0

VOID_BY_JOB = "job"


class Appointing:
    """The appointments of one job."""

    def __init__(
        self, appointments: Appointments, job: str, now: Callable[[], int], downstream: DownstreamSide
    ) -> None:
        """`now`: fresh timestamps of PD."""
        self._appointments = appointments
        self._job = job
        self._now = now
        self._downstream = downstream
        self._ahead_ms = _AHEAD_MS

    def make(self, wanted: Appointment) -> Appointment:
        """The appointment, at a timestamp that PD's clock has not reached. Raises BackfillError if none can be made in
        time, PDError, RelayError, OSError.
        """
        while True:
            made = replace(wanted, at_ts=self._now() + tso.span(self._ahead_ms))
            try:
                self._appointments.make(made)
            except AppointmentExistsError:
                continue
            if self._now() < made.at_ts:
                return made
            self.give_up(made, "the appointment came too late")
            self._appointments.remove(made.at_ts)
            self._ahead_ms *= 2
            if self._ahead_ms > _AHEAD_AT_MOST_MS:
                raise BackfillError(
                    f"appointments come too late: writing a file takes longer than {_AHEAD_AT_MOST_MS / 1000:g} s",
                    way_out="see to the relay log's storage, then `sluice jobs resume`",
                )

    def wait_for(self, at_ts: int) -> None:
        """Return once PD's clock is past the timestamp."""
        while (now := self._now()) <= at_ts:
            time.sleep(min(max(tso.ms_between(now, at_ts), 1) / 1000, 1.0))

    def settle(self, made: Appointment, ready: Ready) -> Ready | Void:
        """The rows are read; what holds."""
        return self._appointments.settle(made.at_ts, ready)

    def give_up(self, made: Appointment, why: str) -> bool:
        """Nothing comes of it; False if its rows are ready already, so that apply may write them."""
        return isinstance(self._appointments.settle(made.at_ts, Void(why, VOID_BY_JOB)), Void)

    def result(self, made: Appointment, waiting: Callable[[float], None]) -> ChunkResult | None:
        """What was done at an appointment whose rows are ready, None: nothing, and nothing will be. `waiting` is
        called with the seconds that it has waited; what that raises comes through.
        """
        began = time.monotonic()
        while True:
            found = self._downstream.note_of(self._job, made.at_ts)
            if found is None and self._downstream.is_past(made.at_ts):
                return self._downstream.note_of(self._job, made.at_ts)
            if found is not None:
                return found
            waited = time.monotonic() - began
            waiting(waited)
            time.sleep(_POLL_S if waited < _SLOW_AFTER_S else _SLOW_POLL_S)

    def remove(self, made: Appointment) -> None:
        """It is over."""
        self._appointments.remove(made.at_ts)

    def mend(self, mending: Mending, run: Run) -> None:
        """Say that rows are missing, which loosens what apply checks. A process that stood still until its job was over
        takes it back at once: nobody else would, before the next job. Raises LeaseLostError, RelayError, OSError.
        """
        self._appointments.mend(mending)
        run.look()
        if run.is_over:
            self._appointments.mended(mending.name)
        run.check()

    def left_over(self) -> list[Appointment]:
        """Those of a process before this one that apply may still write; the others are given up and removed."""
        found = []
        for made in self._appointments.of_job(self._job):
            if self.give_up(made, "the process that made it has ended"):
                self._appointments.remove(made.at_ts)
            else:
                found.append(made)
        return found
