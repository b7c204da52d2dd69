"""Running one Spark job: the session, the job, its input, and the manners of its workers. Its modules are its doors."""

__all__ = ["frame", "job", "session", "worker"]
