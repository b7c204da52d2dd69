"""Errors of jobs."""

from __future__ import annotations

from sluice.errors import RequestError, Signal, SluiceError
from sluice.relay.errors import ClaimLostError, RelayError


class JobError(RequestError, RelayError):
    """A request for a job can't be fulfilled; nothing has changed."""

    hint = "`sluice jobs` shows the jobs there are"


class JobOverlapError(JobError):
    """Another job that isn't over touches the same; names it."""


class JobRunsError(JobError):
    """Another process runs the job; names it."""


class LeaseLostError(ClaimLostError):
    """Another process runs the job now: this one must stop, and writes nothing more about it."""

    hint = "nothing need be done: the job goes on there. `sluice jobs` shows how far it is"


class StopRequested(Signal):
    """End a run at a safe point: an operator ordered the job to pause or to be cancelled."""

    def __init__(self, order: str | None) -> None:
        super().__init__(order)
        self.order = order
        """The order as it was when this was raised (`JobRun.order`); it may change later."""


class NotDoneError(SluiceError):
    """The job was paused or cancelled, as ordered."""

    hint = "trigger the DAG with the same values to go on with a paused one"

    @classmethod
    def of(cls, job: str, state: str) -> NotDoneError:
        """Return the error of a job that any process can resume if it is paused."""
        return cls(
            f"the job {job} is {state}, as was ordered",
            hint=(
                f"trigger the DAG with the same values, or `sluice jobs resume {job}`, goes on with"
                " a paused one"
            ),
        )
