"""Jobs: what takes long and what a person asks for, written down under the relay log's URL so that any process on any
machine sees it, gives orders to who runs it, and goes on where another was killed.

What a kind of job does is elsewhere (`etl.copy`); here is who may, how far it is, and what has become of it.
"""

from relay.jobs.errors import JobError, JobOverlapError, JobRunsError, LeaseLostError, NotDoneError
from relay.jobs.history import (
    CANCELLED,
    CANCELLING,
    DONE,
    FAILED,
    INTERRUPTED,
    OVER,
    PAUSED,
    PAUSING,
    PLANNED,
    RUNNING,
    STATES,
    Entry,
)
from relay.jobs.jobs import RESUME, Job, Jobs, JobStatus
from relay.jobs.lease import CANCEL, PAUSE, Run
from relay.jobs.meanwhile import meanwhile, stopping_on_orders
from relay.jobs.progress import Done, JobProgress, Member, TableProgress
from relay.jobs.runner import Runner
from relay.jobs.saying import saying
from relay.jobs.spec import JobSpec, Touches

__all__ = [
    "CANCEL",
    "CANCELLED",
    "CANCELLING",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "OVER",
    "PAUSE",
    "PAUSED",
    "PAUSING",
    "PLANNED",
    "RESUME",
    "RUNNING",
    "STATES",
    "Done",
    "Entry",
    "Job",
    "JobError",
    "JobOverlapError",
    "JobProgress",
    "JobRunsError",
    "JobSpec",
    "JobStatus",
    "Jobs",
    "LeaseLostError",
    "Member",
    "NotDoneError",
    "Run",
    "Runner",
    "TableProgress",
    "Touches",
    "meanwhile",
    "saying",
    "stopping_on_orders",
]
