"""Run one Spark job: the session, the job, its input, its errors, and the tuning of its workers.

Callers import its modules directly.
"""

__all__ = ["errors", "frame", "function", "job", "judge", "session", "standing", "worker"]
