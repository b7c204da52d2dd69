"""Running one Spark job: the session, the job, its input, its errors, and the manners of its
workers. Its modules are its doors.
"""

__all__ = ["errors", "frame", "function", "job", "judge", "session", "standing", "worker"]
