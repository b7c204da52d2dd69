"""Run one Spark job: the session, the job, its input, its errors, and the tuning of its workers.

Callers import its modules directly.
"""

__all__ = [
    "errors",
    "job",
    "persistent_worker",
    "remote_function",
    "resilient_function",
    "session",
    "worker_pool",
]
