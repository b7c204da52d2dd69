"""The process that lands, or applies, and outlasts the task that began it: the next run's task
takes it up.
"""

from sluice.etl.tasks.worker.client import WorkerLostError, run_in_worker
from sluice.etl.tasks.worker.task_spec import WorkerSpec

__all__ = ["WorkerLostError", "WorkerSpec", "run_in_worker"]
