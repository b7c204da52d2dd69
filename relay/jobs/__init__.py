"""Jobs: what takes long and what a person asks for, written down under the relay log's URL so that
any process on any machine sees it, gives orders to who runs it, and goes on where another was
killed.

What a kind of job does is elsewhere (`sluice.etl.copy`); here is who may, how far it is, and what
has become of it.
"""

from sluice.relay.jobs.background import run_every, stop_on_orders
from sluice.relay.jobs.errors import (
    JobError,
    JobOverlapError,
    JobRunsError,
    LeaseLostError,
    NotDoneError,
    StopRequested,
)
from sluice.relay.jobs.jobs import RESUME, Job, Jobs, JobStatus
from sluice.relay.jobs.lease import CANCEL, PAUSE, JobRun
from sluice.relay.jobs.progress import JobCounts, JobProgress, TableProgress, WorkerProgress
from sluice.relay.jobs.progress_log import log_progress
from sluice.relay.jobs.runner import Runner
from sluice.relay.jobs.spec import JobSpec, WriteScope
from sluice.relay.jobs.state_log import (
    CANCELLED,
    CANCELLING,
    DONE,
    FAILED,
    FINAL_STATES,
    INTERRUPTED,
    PAUSED,
    PAUSING,
    PLANNED,
    RUNNING,
    STATES,
    StateEntry,
)

__all__ = [
    "CANCEL",
    "CANCELLED",
    "CANCELLING",
    "DONE",
    "FAILED",
    "FINAL_STATES",
    "INTERRUPTED",
    "PAUSE",
    "PAUSED",
    "PAUSING",
    "PLANNED",
    "RESUME",
    "RUNNING",
    "STATES",
    "Job",
    "JobCounts",
    "JobError",
    "JobOverlapError",
    "JobProgress",
    "JobRun",
    "JobRunsError",
    "JobSpec",
    "JobStatus",
    "Jobs",
    "LeaseLostError",
    "NotDoneError",
    "Runner",
    "StateEntry",
    "StopRequested",
    "TableProgress",
    "WorkerProgress",
    "WriteScope",
    "log_progress",
    "run_every",
    "stop_on_orders",
]
