"""The worker process that lands, or applies, and outlives the task that began it.

The next run's task attaches to it.
"""

from sluice.etl.tasks.worker.client import WorkerLostError, run_in_worker, stop_on_sigterm
from sluice.etl.tasks.worker.task_spec import WorkerSpec

__all__ = ["WorkerLostError", "WorkerSpec", "run_in_worker", "stop_on_sigterm"]
