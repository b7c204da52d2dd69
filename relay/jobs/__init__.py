"""Jobs: work that takes long and that a person asks for.

They are recorded under the relay log's URL, so any process on any machine sees them, gives orders
to the running process, and goes on where another was killed.

What a kind of job does is elsewhere (`sluice.etl.copy`). This package knows which process may run a
job, its progress and its state.
"""

from sluice.relay.jobs.background import log_progress, run_every, stop_on_orders
from sluice.relay.jobs.errors import (
    JobError,
    JobOverlapError,
    JobRunsError,
    LeaseLostError,
    NotDoneError,
    StopRequested,
)
from sluice.relay.jobs.job import RESUME, Job, JobStatus
from sluice.relay.jobs.jobs import Jobs
from sluice.relay.jobs.lease import CANCEL, PAUSE, JobRun
from sluice.relay.jobs.pace import Pace
from sluice.relay.jobs.progress import JobCounts, JobProgress, TableProgress, WorkerProgress
from sluice.relay.jobs.runner import Runner
from sluice.relay.jobs.spec import JobSpec, WriteScope, with_landed_end
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
from sluice.relay.jobs.timeline import JobTimeline, ProgressPoint, StateSpan, job_timeline

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
    "JobTimeline",
    "Jobs",
    "LeaseLostError",
    "NotDoneError",
    "Pace",
    "ProgressPoint",
    "Runner",
    "StateEntry",
    "StateSpan",
    "StopRequested",
    "TableProgress",
    "WorkerProgress",
    "WriteScope",
    "job_timeline",
    "log_progress",
    "run_every",
    "stop_on_orders",
    "with_landed_end",
]
