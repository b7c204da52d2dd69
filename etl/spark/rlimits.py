"""The limit on open files of a process."""

from __future__ import annotations

import resource

__all__ = ["raise_nofile_limit"]


def raise_nofile_limit() -> None:
    """Raise the limit on open files to the hard limit.

    Shells often allow 1,024, and there is a file a table where many tables are written at a time.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
